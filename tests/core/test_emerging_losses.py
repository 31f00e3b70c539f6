"""Losses of section 5 and those people compare with, against numbers worked out by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from vigneron.core.advantages import group_relative, leave_one_out, optimal_value
from vigneron.core.curriculum import level_probabilities
from vigneron.core.losses import (
    a_star,
    cispo,
    clipped,
    clipped_ratio,
    dpo,
    ipo,
    kto,
    oreo,
    orpo,
    policy_gradient,
    simpo,
    topr,
)
from vigneron.core.shaping import soft_overlong

KINDS = ("classical", "balanced", "cosine", "gaussian")


def numbers(*values: float, gradient: bool = False) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=gradient)


def test_clip_higher_leaves_more_room_above() -> None:
    """Ratios 1.25 and 0.7 with A = 1 and −1: ε = 0.2 clips both; with ε_high = 0.28 the first is free."""
    logprobs = numbers(math.log(1.25), math.log(0.7), gradient=True)[None]
    both = (logprobs, torch.zeros(1, 2).double(), numbers(1.0, -1.0)[None], torch.ones(1, 2))
    assert clipped_ratio(*both).tolist() == [pytest.approx([-1.2, 0.8])]
    assert clipped_ratio(*both, epsilon_high=0.28).tolist() == [pytest.approx([-1.25, 0.8])]
    assert clipped(*both).tolist() == [[1.0, 1.0]]
    assert clipped(*both, epsilon_high=0.28).tolist() == [[0.0, 1.0]]


def test_gspo_by_hand() -> None:
    """Token ratios 2 and ½·1.21 of a text of two: the geometric mean is √1.21 = 1.1, clipped at 1.05 where A = 2."""
    logprobs = numbers(math.log(2.0), math.log(0.605), 7.0)[None]
    batch = (logprobs, torch.zeros(1, 3).double(), numbers(2.0, 2.0, math.nan)[None], numbers(1, 1, 0)[None])
    assert clipped_ratio(*batch, epsilon=0.2, level="geometric").tolist() == [pytest.approx([-2.2, -2.2, 0.0])]
    assert clipped_ratio(*batch, epsilon=0.05, level="geometric").tolist() == [pytest.approx([-2.1, -2.1, 0.0])]
    assert clipped(*batch, epsilon=0.05, level="geometric")[0, :2].tolist() == [1.0, 1.0]
    none = clipped_ratio(*batch[:3], torch.zeros(1, 3), level="geometric")
    assert none.tolist() == [[0.0, 0.0, 0.0]], "a text without a token has length 1"


def test_cispo_by_hand() -> None:
    """Ratios 2 and 8, limited to 5: −2 · 3 · log π and −5 · (−1) · log π; the gradient is that of log π alone."""
    logprobs = numbers(-1.0, -0.5, gradient=True)
    behaviour = numbers(-1.0 - math.log(2), -0.5 - math.log(8))
    values = cispo(logprobs[None], behaviour[None], numbers(3.0, -1.0)[None])
    assert values.tolist() == [pytest.approx([6.0, -2.5])]
    values.sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([-6.0, 5.0])


def test_where_nothing_has_moved_cispo_is_the_policy_gradient() -> None:
    logprobs, advantages = numbers(-1.0, -2.0)[None], numbers(0.5, -3.0)[None]
    torch.testing.assert_close(cispo(logprobs, logprobs, advantages), policy_gradient(logprobs, advantages))


def test_ipo_by_hand() -> None:
    """Δ = (−1 + 2) − (−3 + 2.5) = 1.5; 1/(2 · 0.5) = 1: (1.5 − 1)² = 0.25. At Δ = 1/(2β) there is nothing to learn."""
    given_ = numbers(-1.0), numbers(-3.0), numbers(-2.0), numbers(-2.5)
    assert ipo(*given_, beta=0.5).tolist() == pytest.approx([0.25])
    assert ipo(*given_, beta=1 / 3).tolist() == pytest.approx([0.0])
    assert ipo(numbers(math.nan), *given_[1:]).isnan().all()


def test_simpo_by_hand() -> None:
    """Means −1 and −2: −log σ(2 · 1 − 0.5) = log(1 + e^{−1.5}). An empty text counts as one token."""
    loss = simpo(numbers(-4.0), numbers(-4.0), torch.tensor([4]), torch.tensor([2]), gamma=0.5)
    assert loss.tolist() == pytest.approx([math.log1p(math.exp(-1.5))])
    empty = simpo(numbers(0.0), numbers(-4.0), torch.tensor([0]), torch.tensor([2]), gamma=0.0)
    assert empty.tolist() == pytest.approx([math.log1p(math.exp(-4.0))])


def test_simpo_without_a_margin_is_dpo_without_a_reference_on_means() -> None:
    chosen, rejected, lengths = numbers(-3.0, -1.0), numbers(-5.0, -0.5), torch.tensor([3, 2])
    torch.testing.assert_close(
        simpo(chosen, rejected, lengths, lengths, beta=0.7, gamma=0.0),
        dpo(chosen / lengths, rejected / lengths, beta=0.7),
    )


def test_topr_by_hand() -> None:
    """R = 1: −log π, however unlikely. R = −2: the ratio is ¼, then 4, limited to 1."""
    logps = numbers(-3.0, -2.0, -2.0, gradient=True)
    behaviour = numbers(0.0, -2.0 + math.log(4), -2.0 - math.log(4))
    losses = topr(logps, behaviour, numbers(1.0, -2.0, -2.0))
    assert losses.tolist() == pytest.approx([3.0, -1.0, -4.0])
    losses.sum().backward()
    assert logps.grad is not None
    assert logps.grad.tolist() == pytest.approx([-1.0, 0.5, 2.0])


def test_a_star_by_hand() -> None:
    """(0.5 · (−1 + 3) + 0.25 − 1)² = 0.0625; a missing reward is NaN and leaves the other's gradient alone."""
    logps = numbers(-1.0, -1.0, gradient=True)
    losses = a_star(logps, numbers(-3.0, -3.0), numbers(0.25, 0.25), numbers(1.0, math.nan), beta=0.5)
    assert losses[0].item() == pytest.approx(0.0625)
    assert losses[1].isnan()
    losses[0].backward()
    assert logps.grad is not None
    assert logps.grad.tolist() == pytest.approx([0.25, 0.0])


def test_at_the_start_a_star_has_the_gradient_of_reinforce_with_the_optimal_value() -> None:
    """Where π is the reference: 2β (V* − r) ∇log π."""
    logps = numbers(-1.0, -4.0, gradient=True)
    rewards, value = numbers(1.0, 0.0), numbers(0.3, 0.3)
    a_star(logps, logps.detach(), value, rewards, beta=0.01).sum().backward()
    assert logps.grad is not None
    torch.testing.assert_close(logps.grad, 0.02 * (value - rewards))


def test_the_optimal_value_by_hand() -> None:
    """β = 1: log mean(e^0, e^{log 3}) = log 2; a missing one is left out; all missing is NaN; never solved is 0."""
    rewards = torch.stack(
        [numbers(0.0, math.log(3)), numbers(2.0, math.nan), numbers(math.nan, math.nan), numbers(0, 0)]
    )
    values = optimal_value(rewards, beta=1.0)
    assert values[:2].tolist() == pytest.approx([math.log(2), 2.0])
    assert values[2].isnan()
    assert values[3].item() == pytest.approx(0.0, abs=1e-12)


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=6), st.floats(0.05, 5))
def test_the_optimal_value_lies_between_mean_and_maximum(rewards: list[float], beta: float) -> None:
    value = optimal_value(numbers(*rewards)[None], beta=beta).item()
    assert sum(rewards) / len(rewards) - 1e-9 <= value <= max(rewards) + 1e-9


def test_oreo_by_hand() -> None:
    """ρ = 1, −2 with β = ½, R = 1, V = 0.5 and 2: value errors 0.5 − 0.5 − 1 and 2 − 1 − 1; the policy's are the same,
    and only its own ρₜ and V carry a gradient."""
    logprobs, values = numbers(0.0, -3.0, 9.0, gradient=True), numbers(0.5, 2.0, 9.0, gradient=True)
    mask, reference = numbers(1, 1, 0)[None], numbers(-1.0, -1.0, math.nan)[None]
    policy, value = oreo(logprobs[None], reference, values[None], numbers(1.0), mask, beta=0.5)
    assert policy.tolist() == value.tolist() == [pytest.approx([1.0, 0.0, 0.0])]
    policy.sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([2 * -1.0 * 0.5, 0.0, 0.0])
    assert values.grad is None
    value.sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == pytest.approx([-2.0, 0.0, 0.0])


def test_a_missing_reward_is_nan_for_oreo_and_leaves_the_others() -> None:
    logprobs = torch.zeros(2, 2, dtype=torch.float64, requires_grad=True)
    zeros, ones = torch.zeros(2, 2).double(), torch.ones(2, 2)
    policy, value = oreo(logprobs, zeros - 1, zeros, numbers(math.nan, 1.0), ones)
    assert policy[0].isnan().all()
    assert value[0].isnan().all()
    policy[1].sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad[0].tolist() == [0.0, 0.0]
    assert logprobs.grad[1].isfinite().all()


def test_levels_by_hand() -> None:
    """Three levels, Z = 6: cosine begins at 3/6, 2/6, 1/6, is even in the middle, and ends reversed."""
    for progress, expected in ((0.0, [3, 2, 1]), (0.5, [2, 2, 2]), (1.0, [1, 2, 3])):
        assert level_probabilities("cosine", progress, 3).tolist() == pytest.approx([n / 6 for n in expected])
    assert [level_probabilities("classical", t, 3).argmax().item() for t in (0.0, 0.34, 0.99, 1.0)] == [0, 1, 2, 2]
    # At the start μ = 0: e^0, e^{−2}, e^{−8}, over a floor of 1/6 each.
    bell = [1.0, math.exp(-2), math.exp(-8)]
    expected = [1 / 6 + 0.5 * each / sum(bell) for each in bell]
    assert level_probabilities("gaussian", 0.0, 3).tolist() == pytest.approx(expected)
    # A quarter of the way μ = ½ · 2 = 1: the middle level.
    assert level_probabilities("gaussian", 0.25, 3).argmax().item() == 1


@given(st.sampled_from(KINDS), st.floats(0, 1), st.integers(1, 9))
def test_levels_are_probabilities(kind: str, progress: float, levels: int) -> None:
    drawn = level_probabilities(kind, progress, levels)  # type: ignore[arg-type]
    assert drawn.shape == (levels,)
    assert drawn.sum().item() == pytest.approx(1.0)
    assert (drawn >= 0).all()


def test_dual_clip_bounds_a_bad_token_whose_ratio_is_large() -> None:
    """Ratios 10 and 2 with A = −1, δ = 3: the losses are 3 and 2, and the first has no gradient."""
    logprobs = numbers(math.log(10.0), math.log(2.0), gradient=True)
    batch = (logprobs[None], torch.zeros(1, 2).double(), numbers(-1.0, -1.0)[None], torch.ones(1, 2))
    values = clipped_ratio(*batch, delta=3.0)
    assert values.tolist() == [pytest.approx([3.0, 2.0])]
    values.sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([0.0, 2.0])
    assert clipped(*batch, delta=3.0).tolist() == [[1.0, 0.0]]
    good = (logprobs[None], torch.zeros(1, 2).double(), numbers(1.0, 1.0)[None], torch.ones(1, 2))
    assert clipped_ratio(*good, delta=3.0).tolist() == clipped_ratio(*good).tolist()


def test_leave_one_out_by_hand() -> None:
    """Rewards 1, 0, 5 of one group: 1 − 2.5, 0 − 3, 5 − 0.5. A lone reward, and a missing one, get 0."""
    rewards, group = numbers(1.0, 0.0, 5.0, 7.0, math.nan), torch.tensor([0, 0, 0, 1, 1])
    assert leave_one_out(rewards, group).tolist() == pytest.approx([-1.5, -3.0, 4.5, 0.0, 0.0])
    ours, grpo = leave_one_out(rewards[:3], group[:3]), group_relative(rewards[:3], group[:3])
    torch.testing.assert_close(ours, grpo * 3 / 2)


def test_soft_overlong_by_hand() -> None:
    """A limit of 16 and a buffer of 4: nothing until 12, −½ at 14, −1 at 16."""
    lengths = torch.tensor([3, 12, 13, 14, 16])
    assert soft_overlong(lengths, limit=16, buffer=4).tolist() == [0.0, 0.0, -0.25, -0.5, -1.0]


def test_orpo_by_hand() -> None:
    """Mean probabilities 0.8 and 0.5: odds 4 and 1, so −log σ(log 4) = log(5/4)."""
    won, lost = numbers(math.log(0.8)), numbers(math.log(0.5))
    assert orpo(won, lost).item() == pytest.approx(math.log(1.25))
    assert orpo(lost, won).item() == pytest.approx(math.log(5.0))
    assert torch.isfinite(orpo(numbers(0.0), lost)).all(), "a certain text has infinite odds"


def test_kto_by_hand() -> None:
    """β = 0.5, ρ = 3, z₀ = 1: 1 − σ(1) for a good text, 1 − σ(−1) for a bad one. NaN where it is unknown."""
    logps, reference = numbers(-1.0, -1.0, -1.0), numbers(-4.0, -4.0, math.nan)
    losses = kto(logps, reference, torch.tensor([1, 0, 1]), numbers(1.0, 1.0, 1.0), beta=0.5)
    sigma = 1 / (1 + math.exp(-1))
    assert losses[:2].tolist() == pytest.approx([1 - sigma, sigma])
    assert losses[2].isnan()
