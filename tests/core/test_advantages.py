"""Group-relative advantages: numbers by hand, and what must hold for all rewards and groups."""

import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vigneron.core.advantages import (
    explained_variance,
    gae,
    group_relative,
    on_last_token,
    share_without_variance,
    without_variance,
)

NAN = math.nan
SCALES = ["none", "std"]
quick = settings(max_examples=100, deadline=None)


def rewards_of(*numbers: float, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor(numbers, dtype=dtype)


def test_by_hand() -> None:
    # Means: (1 + 0 + 0 + 1) / 4 = 0.5, and (3 + 6) / 2 = 4.5.
    advantages = group_relative(rewards_of(1, 0, 0, 1, 3, 6), torch.tensor([0, 0, 0, 0, 1, 1]))
    assert advantages.tolist() == [0.5, -0.5, -0.5, 0.5, -1.5, 1.5]


def test_the_std_is_the_unbiased_one_with_an_offset() -> None:
    # Mean 2; deviations −2, 0, 2; Σ² = 8; 8 / (3 − 1) = 4; std 2 (a biased one would be 1.633).
    advantages = group_relative(rewards_of(0, 2, 4), torch.tensor([5, 5, 5]), scale="std")
    assert advantages.tolist() == pytest.approx([-2 / 2.0001, 0, 2 / 2.0001], rel=1e-12)


@pytest.mark.parametrize("scale", SCALES)
def test_a_missing_reward_is_in_no_baseline_and_gets_nothing(scale: str) -> None:
    # Mean of 1 and 3, not of 1, 3 and 0; std of the two: √2.
    group = torch.tensor([0, 0, 0])
    advantages = group_relative(rewards_of(1, NAN, 3), group, scale=scale)
    divisor = 1.0 if scale == "none" else math.sqrt(2) + 1e-4
    assert advantages.tolist() == pytest.approx([-1 / divisor, 0.0, 1 / divisor], rel=1e-12)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(
    ("rewards", "group"),
    [
        ((5.0,), (0,)),  # a group of one
        ((5.0, NAN, NAN), (0, 0, 0)),  # a lone survivor
        ((NAN, NAN), (0, 0)),  # nobody
        ((0.1, 0.1, 0.1), (0, 0, 0)),  # in float32 and float64 their mean is not 0.1
        ((0.7,) * 7, (3,) * 7),
        ((), ()),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_has_nothing_to_compare_with_gets_exactly_zero(
    scale: str, rewards: tuple[float, ...], group: tuple[int, ...], dtype: torch.dtype
) -> None:
    advantages = group_relative(rewards_of(*rewards, dtype=dtype), torch.tensor(group, dtype=torch.long), scale=scale)
    assert advantages.tolist() == [0.0] * len(rewards)
    assert advantages.dtype == dtype


def test_the_share_of_groups_without_variance_by_hand() -> None:
    # Group 4: 1, 0. Group 9: 0.1 three times. Group −1: one reward. Group 2: all missing, which does not count.
    rewards = rewards_of(1, 0.1, 0, 0.1, 0.1, 0.5, NAN, NAN, dtype=torch.float32)
    group = torch.tensor([4, 9, 4, 9, 9, -1, -1, 2])
    assert share_without_variance(rewards, group).item() == pytest.approx(2 / 3)
    assert share_without_variance(rewards[:1], group[:1]).item() == 1.0
    assert math.isnan(share_without_variance(rewards[-1:], group[-1:]).item())


@st.composite
def samples(draw: st.DrawFn, *, missing: bool = True) -> tuple[list[float], list[int]]:
    """Rewards, some missing, of samples that stand in any order; group numbers have gaps and signs."""
    number = st.floats(-100, 100, allow_subnormal=False)
    reward = st.one_of(number, st.sampled_from([0.0, 0.1, 1.0]), *([st.just(NAN)] if missing else []))
    pairs = draw(st.lists(st.tuples(reward, st.sampled_from([-7, 0, 1, 12, 10**12])), min_size=1, max_size=24))
    return [r for r, _ in pairs], [g for _, g in pairs]


def plain(rewards: list[float], group: list[int], scale: str) -> list[float]:
    """The same, one sample at a time."""
    out = []
    for reward, own in zip(rewards, group, strict=True):
        others = [r for r, g in zip(rewards, group, strict=True) if g == own and not math.isnan(r)]
        if math.isnan(reward) or len(others) < 2:
            out.append(0.0)
            continue
        divisor = 1.0 if scale == "none" else statistics.stdev(others) + 1e-4
        out.append((reward - statistics.fmean(others)) / divisor)
    return out


@quick
@given(samples(), st.sampled_from(SCALES))
def test_it_is_what_a_plain_loop_gives_and_never_nan(given_: tuple[list[float], list[int]], scale: str) -> None:
    rewards, group = given_
    advantages = group_relative(rewards_of(*rewards), torch.tensor(group), scale=scale)
    assert not advantages.isnan().any()
    assert advantages.tolist() == pytest.approx(plain(rewards, group, scale), abs=1e-9, rel=1e-6)


@quick
@given(samples(), st.floats(-50, 50), st.sampled_from(SCALES))
def test_a_shift_of_all_rewards_changes_nothing(
    given_: tuple[list[float], list[int]], shift: float, scale: str
) -> None:
    rewards, group = rewards_of(*given_[0]), torch.tensor(given_[1])
    moved = group_relative(rewards + shift, group, scale=scale)
    # Rounding of the shifted rewards themselves, magnified by at most 1 / 1e-4.
    torch.testing.assert_close(moved, group_relative(rewards, group, scale=scale), atol=1e-8, rtol=1e-6)


@quick
@given(samples(), st.sampled_from(SCALES))
def test_a_groups_advantages_sum_to_zero(given_: tuple[list[float], list[int]], scale: str) -> None:
    rewards, group = rewards_of(*given_[0]), torch.tensor(given_[1])
    advantages = group_relative(rewards, group, scale=scale)
    for own in group.unique():
        assert advantages[group == own].sum().item() == pytest.approx(0.0, abs=1e-9)


@quick
@given(samples(), st.sampled_from(SCALES), st.randoms(use_true_random=False))
def test_the_order_of_samples_and_the_numbers_of_groups_do_not_matter(
    given_: tuple[list[float], list[int]], scale: str, random: object
) -> None:
    rewards, group = rewards_of(*given_[0], dtype=torch.float32), torch.tensor(given_[1])
    order = list(range(len(rewards)))
    random.shuffle(order)  # type: ignore[attr-defined]
    shuffled = group_relative(rewards[order], group[order] * 3 - 1, scale=scale)
    torch.testing.assert_close(shuffled, group_relative(rewards, group, scale=scale)[order], atol=1e-6, rtol=1e-6)


@quick
@given(samples(), st.sampled_from(SCALES))
def test_a_missing_sample_leaves_the_others_as_if_it_were_not_there(
    given_: tuple[list[float], list[int]], scale: str
) -> None:
    rewards, group = rewards_of(*given_[0]), torch.tensor(given_[1])
    there = ~rewards.isnan()
    advantages = group_relative(rewards, group, scale=scale)
    assert advantages[~there].tolist() == [0.0] * int((~there).sum())
    torch.testing.assert_close(advantages[there], group_relative(rewards[there], group[there], scale=scale))


@quick
@given(samples())
def test_a_group_without_variance_is_one_whose_advantages_are_all_zero(given_: tuple[list[float], list[int]]) -> None:
    rewards, group = given_
    present = {own for reward, own in zip(rewards, group, strict=True) if not math.isnan(reward)}
    flat = {
        own
        for own in present
        if len({r for r, g in zip(rewards, group, strict=True) if g == own and not math.isnan(r)}) == 1
    }
    share = share_without_variance(rewards_of(*rewards), torch.tensor(group)).item()
    assert share == pytest.approx(len(flat) / len(present)) if present else math.isnan(share)


# ---------------------------------------------------------------------------------------------- GAE


def test_gae_by_hand() -> None:
    # γ = 0.9, λ = 0.5, V = 1, 2, 3 before the three tokens, rewards 0, 0, 10, then a masked position.
    rewards = torch.tensor([[0.0, 0.0, 10.0, math.nan]], dtype=torch.float64)
    values = torch.tensor([[1.0, 2.0, 3.0, math.nan]], dtype=torch.float64)
    advantages, returns = gae(rewards, values, torch.tensor([[1, 1, 1, 0]]), gamma=0.9, lam=0.5)
    # δ₂ = 10 − 3 = 7;  δ₁ = 0.9·3 − 2 = 0.7;  δ₀ = 0.9·2 − 1 = 0.8.
    # A₂ = 7;  A₁ = 0.7 + 0.45·7 = 3.85;  A₀ = 0.8 + 0.45·3.85 = 2.5325.
    torch.testing.assert_close(advantages, torch.tensor([[2.5325, 3.85, 7.0, 0.0]], dtype=torch.float64))
    torch.testing.assert_close(returns, torch.tensor([[3.5325, 5.85, 10.0, 0.0]], dtype=torch.float64))


def test_positions_between_turns_are_stepped_over() -> None:
    mask = torch.tensor([[1, 0, 1]])
    values, rewards = torch.tensor([[1.0, math.nan, 3.0]]), torch.tensor([[0.0, math.nan, 4.0]])
    together, _ = gae(rewards, values, mask, gamma=0.9, lam=0.5)
    apart, _ = gae(rewards[:, [0, 2]], values[:, [0, 2]], mask[:, [0, 2]], gamma=0.9, lam=0.5)
    assert together[:, [0, 2]].tolist() == apart.tolist()
    assert together[0, 1] == 0.0


ragged = st.lists(st.integers(0, 5), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(ragged, st.integers(0, 2**31), st.floats(0, 1), st.floats(0, 1))
def test_gae_is_the_discounted_sum_of_its_deltas(lengths: list[int], seed: int, gamma: float, lam: float) -> None:
    width = max(lengths) + 1
    torch.manual_seed(seed)
    rewards, values = torch.randn(2, len(lengths), width, dtype=torch.float64)
    mask = torch.arange(width) < torch.tensor(lengths)[:, None]
    advantages, returns = gae(rewards, values, mask, gamma=gamma, lam=lam)
    for i, length in enumerate(lengths):
        after = [*values[i, 1:length].tolist(), 0.0]
        deltas = [float(rewards[i, t]) + gamma * after[t] - float(values[i, t]) for t in range(length)]
        for t in range(length):
            wanted = sum((gamma * lam) ** k * deltas[t + k] for k in range(length - t))
            assert float(advantages[i, t]) == pytest.approx(wanted, abs=1e-9)
            assert float(returns[i, t]) == pytest.approx(wanted + float(values[i, t]), abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(ragged, st.integers(0, 2**31))
def test_with_a_terminal_reward_and_no_discount_it_is_eq_4(lengths: list[int], seed: int) -> None:
    """A = R − V(sₜ) at every token."""
    width = max(lengths) + 1
    torch.manual_seed(seed)
    values, final = torch.randn(len(lengths), width, dtype=torch.float64), torch.randn(len(lengths)).double()
    mask = torch.arange(width) < torch.tensor(lengths)[:, None]
    rewards = torch.where(torch.arange(width) == torch.tensor(lengths)[:, None] - 1, final[:, None], 0.0)
    advantages, returns = gae(rewards, values, mask)
    wanted = torch.where(mask, final[:, None] - values, 0.0)
    torch.testing.assert_close(advantages, wanted, atol=1e-12, rtol=0)
    torch.testing.assert_close(returns, torch.where(mask, final[:, None], 0.0).expand(mask.shape), atol=1e-12, rtol=0)


def test_a_whole_texts_reward_stands_on_its_last_written_token() -> None:
    """A user's turn may stand in between, and a row may have no token at all."""
    mask = torch.tensor([[1, 1, 0, 0], [1, 0, 1, 0], [0, 0, 0, 0]])
    found = on_last_token(torch.tensor([2.0, -1.0, 5.0]), mask)
    assert found.tolist() == [[0, 2, 0, 0], [0, 0, -1, 0], [0, 0, 0, 0]]


def test_explained_variance_by_hand() -> None:
    """Returns 0, 1, 2, 3 (variance 5/3); the errors 0, 0, 1, 1 have variance 1/3: 1 − 1/5."""
    returns = torch.tensor([[0.0, 1.0], [2.0, 3.0]])
    values, mask = torch.tensor([[0.0, 1.0], [1.0, 2.0]]), torch.ones(2, 2)
    assert explained_variance(values, returns, mask) == pytest.approx(0.8)
    assert explained_variance(returns + 7, returns, mask) == pytest.approx(1.0), "a constant error explains all"
    assert explained_variance(torch.full((2, 2), 9.0), returns, mask) == pytest.approx(0.0)
    assert math.isnan(explained_variance(values, torch.ones(2, 2), mask))
    missing = torch.tensor([[0.0, 1.0], [2.0, math.nan]])
    assert explained_variance(returns, missing, mask) == pytest.approx(1.0)


def test_groups_without_variance_are_named_sample_by_sample() -> None:
    rewards = torch.tensor([1.0, 0.5, 1.0, 0.5, math.nan, 2.0, math.nan])
    groups = torch.tensor([7, 3, 7, 3, 4, 4, 9])
    assert without_variance(rewards, groups).tolist() == [True, True, True, True, True, True, True]
    rewards[0] = 0.9
    assert without_variance(rewards, groups).tolist() == [False, True, False, True, True, True, True]
