"""Losses against numbers worked out by hand, and the one aggregation against plain loops."""

import math
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vigneron.core.losses import (
    LOG_RATIO_CAP,
    aggregate,
    aggregate_denominator,
    bradley_terry,
    clipped_ratio,
    clipped_squared_error,
    dpo,
    importance_ratio,
    nll,
    policy_gradient,
    preference_bce,
    squared_error,
)

MODES = ["tokens", "samples", "sum_over_samples"]
DTYPES = [torch.bool, torch.int64, torch.float32]
LEVELS = ["token", "sequence", "geometric"]
quick = settings(max_examples=60, deadline=None)


def log(*ratios: float) -> Tensor:
    return torch.tensor([ratios], dtype=torch.float64).log()


def row(*numbers: float) -> Tensor:
    return torch.tensor([numbers], dtype=torch.float64)


def test_policy_gradient_by_hand() -> None:
    logprobs = row(-1.0, -2.0, -0.5).requires_grad_()
    loss = policy_gradient(logprobs, row(2.0, -3.0, 0.0))
    # −2·(−1) = 2; −(−3)·(−2) = −6; 0.
    assert loss.tolist() == [[2.0, -6.0, 0.0]]
    loss.sum().backward()
    assert logprobs.grad.tolist() == [[-2.0, 3.0, 0.0]]  # −A: minimising raises what has A > 0


def test_clipped_ratio_by_token_by_hand_and_clips_on_the_right_side() -> None:
    # ε = 0.2, r = 1.5, 1.1, 0.5 for A = 2, then for A = −2.
    logprobs = torch.cat([log(1.5, 1.1, 0.5), log(1.5, 1.1, 0.5)]).requires_grad_()
    advantages = torch.cat([row(2, 2, 2), row(-2, -2, -2)])
    behaviour = torch.zeros(2, 3, dtype=torch.float64)
    loss = clipped_ratio(logprobs, behaviour, advantages, torch.ones(2, 3), epsilon=0.2)
    # A = 2:  −min(3, 2.4) = −2.4;  −min(2.2, 2.2) = −2.2;  −min(1, 1.6) = −1.
    # A = −2: −min(−3, −2.4) = 3;   −min(−2.2, −2.2) = 2.2; −min(−1, −1.6) = 1.6.
    torch.testing.assert_close(loss, torch.cat([row(-2.4, -2.2, -1.0), row(3.0, 2.2, 1.6)]))
    loss.sum().backward()
    # ∂/∂log π = −A·r where the unclipped side is taken, 0 where clipping is active:
    # above 1 + ε for A > 0, below 1 − ε for A < 0.
    torch.testing.assert_close(logprobs.grad, torch.cat([row(0.0, -2.2, -1.0), row(3.0, 2.2, 0.0)]))


def test_clipped_ratio_by_sequence_by_hand() -> None:
    # Row 1: r = 1.5 · 0.9 = 1.35, the third token masked out. Row 2: r = 0.8 · 1.25 · 0.5 = 0.5.
    logprobs = torch.cat([log(1.5, 0.9, 7.0), log(0.8, 1.25, 0.5)]).requires_grad_()
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    advantages = torch.cat([row(2, 2, 2), row(-3, -3, -3)])
    loss = clipped_ratio(logprobs, torch.zeros_like(logprobs), advantages, mask, epsilon=0.2, level="sequence")
    # Sample 1: −min(2.7, 1.2 · 2) = −2.4, shared by 2 tokens. Sample 2: −min(−1.5, −2.4) = 2.4, shared by 3.
    torch.testing.assert_close(loss, torch.cat([row(-1.2, -1.2, 0.0), row(0.8, 0.8, 0.8)]))
    torch.testing.assert_close(loss.sum(1), torch.tensor([-2.4, 2.4], dtype=torch.float64))
    loss.sum().backward()
    assert not logprobs.grad.any()  # both samples are clipped

    # Not clipped: A = −2 at r = 1.35 gives −min(−2.7, −2.4) = 2.7, and ∂/∂log πₜ = 2.7 for each of its tokens.
    logprobs = log(1.5, 0.9, 7.0).requires_grad_()
    loss = clipped_ratio(logprobs, torch.zeros_like(logprobs), row(-2, -2, -2), mask[:1], level="sequence")
    loss.sum().backward()
    torch.testing.assert_close(loss, row(1.35, 1.35, 0.0))
    torch.testing.assert_close(logprobs.grad, row(2.7, 2.7, 0.0))


def test_levels_agree_on_texts_of_one_token() -> None:
    logprobs, advantages = log(1.5, 0.5, 1.1, 0.7).T, row(1.0, 2.0, -1.0, -2.0).T
    by_level = [
        clipped_ratio(logprobs, torch.zeros_like(logprobs), advantages, torch.ones(4, 1), level=level)
        for level in LEVELS
    ]
    for other in by_level[1:]:
        torch.testing.assert_close(other, by_level[0])


@pytest.mark.parametrize("level", LEVELS)
def test_clipped_ratio_at_ratio_one_has_the_policy_gradient(level: str) -> None:
    torch.manual_seed(0)
    start = torch.randn(3, 4, dtype=torch.float64)
    advantages = torch.randn(3, 1, dtype=torch.float64).expand(3, 4)
    mask = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1]])
    gradients = []
    for loss in (
        lambda p: clipped_ratio(p, start, advantages, mask, level=level),
        lambda p: policy_gradient(p, advantages),
    ):
        logprobs = start.clone().requires_grad_()
        aggregate(loss(logprobs), mask, mode="sum_over_samples").backward()
        gradients.append(logprobs.grad)
    assert gradients[1].abs().sum() > 1
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("level", LEVELS)
def test_a_huge_log_ratio_is_capped_and_stays_finite(level: str) -> None:
    logprobs = torch.tensor([[1000.0, 0.0]], requires_grad=True)
    loss = clipped_ratio(logprobs, torch.zeros(1, 2), torch.full((1, 2), -1.0), torch.tensor([[1, 0]]), level=level)
    loss[0, 0].backward()
    assert loss[0, 0].item() == pytest.approx(math.exp(LOG_RATIO_CAP))  # A < 0: not clipped from above
    assert logprobs.grad.isfinite().all()


def test_squared_error_by_hand_and_without_a_return() -> None:
    values = torch.tensor([1.0, 3.0, 5.0], requires_grad=True)
    errors = squared_error(values, torch.tensor([4.0, math.nan, 4.5]))
    assert errors[[0, 2]].tolist() == [9.0, 0.25]
    assert errors[1].isnan()
    errors[[0, 2]].sum().backward()
    assert values.grad.tolist() == [-6.0, 0.0, 1.0]  # 2 (V − R)


@pytest.mark.parametrize("dtype", DTYPES)
def test_aggregate_by_hand(dtype: torch.dtype) -> None:
    values = torch.tensor([[1.0, 2.0, 6.0], [5.0, math.nan, math.nan], [math.nan, math.nan, math.inf]])
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [0, 0, 0]]).to(dtype)
    # Sums 9 and 5, of 3 and 1 tokens; the third row has no token and is no sample.
    assert aggregate(values, mask, mode="tokens").item() == 14 / 4
    assert aggregate(values, mask, mode="samples").item() == (9 / 3 + 5 / 1) / 2
    assert aggregate(values, mask, mode="sum_over_samples").item() == (9 + 5) / 2
    assert [aggregate_denominator(mask, mode) for mode in MODES] == [4, 2, 2]
    assert aggregate(values, mask, mode="tokens", denominator=7.0).item() == 14 / 7
    assert aggregate(values, mask, mode="samples", denominator=4.0).item() == (9 / 3 + 5 / 1) / 4


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("denominator", [None, 0.0])
def test_nothing_to_count_gives_zero_and_no_gradient(mode: str, denominator: float | None) -> None:
    values = torch.full((2, 3), math.nan, requires_grad=True)
    total = aggregate(values, torch.zeros(2, 3), mode=mode, denominator=denominator)
    total.backward()
    assert total.item() == 0.0
    assert not values.grad.any()


@st.composite
def batches(draw: st.DrawFn) -> tuple[Tensor, Tensor, list[int]]:
    """Values, a mask (rows may be empty) and the part each row goes to."""
    rows, width = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    numbers = st.floats(-10, 10, allow_nan=False, width=32)
    values = draw(st.lists(st.lists(numbers, min_size=width, max_size=width), min_size=rows, max_size=rows))
    mask = draw(st.lists(st.lists(st.booleans(), min_size=width, max_size=width), min_size=rows, max_size=rows))
    parts = draw(st.lists(st.integers(0, rows - 1), min_size=rows, max_size=rows))
    return torch.tensor(values, dtype=torch.float64), torch.tensor(mask), parts


def by_loops(values: list[list[float]], mask: list[list[bool]], mode: str) -> float:
    kept = [[x for x, keep in zip(*pair, strict=True) if keep] for pair in zip(values, mask, strict=True)]
    kept = [numbers for numbers in kept if numbers]
    if not kept:
        return 0.0
    if mode == "tokens":
        return sum(map(sum, kept)) / sum(map(len, kept))
    return sum(sum(numbers) / (len(numbers) if mode == "samples" else 1) for numbers in kept) / len(kept)


@pytest.mark.parametrize("mode", MODES)
@quick
@given(batch=batches())
def test_every_split_with_the_global_denominator_adds_up_to_the_whole(
    mode: str, batch: tuple[Tensor, Tensor, list[int]]
) -> None:
    values, mask, parts = batch
    whole_values = values.clone().requires_grad_()
    whole = aggregate(whole_values**2, mask, mode=mode)
    whole.backward()
    assert whole.item() == pytest.approx(by_loops((values**2).tolist(), mask.tolist(), mode), rel=1e-12, abs=1e-12)

    split_values = values.clone().requires_grad_()
    denominator = float(aggregate_denominator(mask, mode))
    total = 0.0
    for part in sorted(set(parts)):
        rows = [i for i, p in enumerate(parts) if p == part]
        columns = max([t + 1 for t in range(mask.shape[1]) if mask[rows, t].any()], default=1)  # cut, as `rows` does
        term = aggregate(split_values[rows, :columns] ** 2, mask[rows, :columns], mode=mode, denominator=denominator)
        term.backward()
        total += term.item()
    assert total == pytest.approx(whole.item(), rel=1e-12, abs=1e-12)
    torch.testing.assert_close(split_values.grad, whole_values.grad, rtol=1e-12, atol=1e-12)


LOSSES = {
    "policy_gradient": (2, lambda mask, p, a: policy_gradient(p, a)),
    "token": (3, lambda mask, p, b, a: clipped_ratio(p, b, a, mask)),
    "sequence": (3, lambda mask, p, b, a: clipped_ratio(p, b, a, mask, level="sequence")),
}


@pytest.mark.parametrize(("loss", "mode", "dtype"), list(product(LOSSES, MODES, DTYPES)))
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**31), bad=st.sampled_from([math.nan, math.inf, -math.inf]), data=st.data())
def test_what_is_masked_out_never_reaches_value_or_gradient(
    loss: str, mode: str, dtype: torch.dtype, seed: int, bad: float, data: st.DataObject
) -> None:
    count, function = LOSSES[loss]
    generator = torch.Generator().manual_seed(seed)
    clean = torch.randn(count, 3, 4, generator=generator, dtype=torch.float64)
    mask = torch.rand(3, 4, generator=generator) < 0.6
    spoilt_inputs = data.draw(st.sets(st.integers(0, count - 1), min_size=1))

    def run(inputs: Tensor) -> tuple[Tensor, Tensor]:
        leaves = inputs.clone().requires_grad_()
        value = aggregate(function(mask.to(dtype), *leaves), mask.to(dtype), mode=mode)
        value.backward()
        return value.detach(), leaves.grad

    spoilt = clean.clone()
    for i in spoilt_inputs:
        spoilt[i][~mask] = bad
    for got, wanted in zip(run(spoilt), run(clean), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)
    assert not run(spoilt)[1][:, ~mask].any()


def test_a_missing_samples_value_never_reaches_the_critic() -> None:
    values = torch.tensor([1.0, math.nan, 3.0], requires_grad=True)
    errors = squared_error(values, torch.tensor([2.0, math.nan, math.nan]))[:, None]
    total = aggregate(errors, torch.tensor([[1.0], [0.0], [0.0]]), mode="samples")
    total.backward()
    assert total.item() == 1.0
    assert values.grad.tolist() == [-2.0, 0.0, 0.0]


# ---------------------------------------------------------------------------------------------- eq. 1, 5-7, §4.9


def test_nll_by_hand() -> None:
    assert nll(row(-1.0, -0.25)).tolist() == [[1.0, 0.25]]


def test_importance_ratio_by_hand() -> None:
    logprobs = log(1.5, 0.5, 1.0).requires_grad_()
    loss = importance_ratio(logprobs, torch.zeros(1, 3, dtype=torch.float64), row(2.0, -3.0, math.nan))
    # −2·1.5 = −3;  −(−3)·0.5 = 1.5;  a missing advantage stays missing.
    torch.testing.assert_close(loss, row(-3.0, 1.5, math.nan), equal_nan=True)
    torch.where(loss.isnan(), 0.0, loss).sum().backward()
    torch.testing.assert_close(logprobs.grad, row(-3.0, 1.5, 0.0))  # −A·r


@quick
@given(st.integers(0, 2**31))
def test_where_nothing_has_moved_ratio_and_clipped_ratio_have_the_policy_gradients_gradient(seed: int) -> None:
    torch.manual_seed(seed)
    start, advantages = -torch.rand(3, 4).double(), torch.randn(3, 4).double()
    gradients = []
    for loss in (
        lambda now: policy_gradient(now, advantages),
        lambda now: importance_ratio(now, start, advantages),
        lambda now: clipped_ratio(now, start, advantages, torch.ones(3, 4)),
    ):
        now = start.clone().requires_grad_()
        loss(now).sum().backward()
        gradients.append(now.grad)
    torch.testing.assert_close(gradients[1], gradients[0])
    torch.testing.assert_close(gradients[2], gradients[0])


def test_bradley_terry_by_hand() -> None:
    chosen, rejected = torch.tensor([2.0, 0.0, 1.0]), torch.tensor([0.0, 2.0, 1.0])
    # log(1 + e⁻²) = 0.126928;  log(1 + e²) = 2.126928;  log 2 = 0.693147.
    torch.testing.assert_close(bradley_terry(chosen, rejected), torch.tensor([0.126928, 2.126928, 0.693147]))
    assert bradley_terry(torch.tensor([-1e4]), torch.tensor([1e4])).tolist() == [2e4]  # no overflow


def test_bradley_terry_is_eq_5_with_both_probabilities() -> None:
    """P(text_i) by the softmax of eq. 5's two rewards."""
    ri, rj, hp = 0.7, -0.4, 1.0
    p = math.exp(ri) / (math.exp(ri) + math.exp(rj))
    wanted = -hp * math.log(p) - (1 - hp) * math.log(1 - p)
    assert float(bradley_terry(torch.tensor([ri]), torch.tensor([rj]))) == pytest.approx(wanted, rel=1e-6)


def test_preference_bce_by_hand() -> None:
    # σ(0) = ½: log 2 either way. σ(2) = 0.880797: −log 0.880797 = 0.126928, −log 0.119203 = 2.126928.
    logits, preferred = torch.tensor([0.0, 2.0, 2.0, 2.0]), torch.tensor([1.0, 1.0, 0.0, 0.25])
    wanted = torch.tensor([0.693147, 0.126928, 2.126928, 0.25 * 0.126928 + 0.75 * 2.126928])
    torch.testing.assert_close(preference_bce(logits, preferred), wanted)
    torch.testing.assert_close(preference_bce(logits[:2], torch.tensor([True, True])), wanted[:2])


@quick
@given(st.floats(-20, 20), st.floats(0, 1))
def test_swapping_the_texts_changes_no_preference_loss(logit: float, preferred: float) -> None:
    one = preference_bce(row(logit)[0], row(preferred)[0])
    other = preference_bce(row(-logit)[0], row(1 - preferred)[0])
    assert float(one) == pytest.approx(float(other), rel=1e-9, abs=1e-12)


def test_dpo_by_hand() -> None:
    # β{(−5 − −6) − (−8 − −7)} = 0.5·(1 + 1) = 1: log(1 + e⁻¹) = 0.313262.
    loss = dpo(*(torch.tensor([x]) for x in (-5.0, -8.0, -6.0, -7.0)), beta=0.5)
    torch.testing.assert_close(loss, torch.tensor([0.313262]))
    # Without a reference, β = 1: log(1 + e⁻³) = 0.048587.
    torch.testing.assert_close(dpo(torch.tensor([-5.0]), torch.tensor([-8.0]), beta=1.0), torch.tensor([0.048587]))
    with pytest.raises(ValueError, match="both texts, or of neither"):
        dpo(torch.tensor([-5.0]), torch.tensor([-8.0]), torch.tensor([-6.0]))


@quick
@given(st.tuples(*[st.floats(-30, 0)] * 4), st.floats(0.01, 2))
def test_dpo_and_its_mirror_are_probabilities_that_sum_to_one(texts: tuple[float, ...], beta: float) -> None:
    """e^−L + e^−L(swapped) = 1, and the loss falls as the chosen text becomes likelier."""
    pair = [torch.tensor([x], dtype=torch.float64) for x in texts]
    loss, mirrored = dpo(*pair, beta=beta), dpo(pair[1], pair[0], pair[3], pair[2], beta=beta)
    assert float((-loss).exp() + (-mirrored).exp()) == pytest.approx(1.0, abs=1e-9)
    likelier = dpo(pair[0] + 0.5, *pair[1:], beta=beta)
    assert float(likelier) < float(loss)


def test_a_clipped_value_error_by_hand() -> None:
    """V₀ = 0, ε = 0.2. Towards the return, past ε: clipped (0.2 − 1)², no gradient. Away from it: never clipped."""
    values = torch.tensor([[0.5, 0.1, -0.5]], requires_grad=True)
    found = clipped_squared_error(values, torch.zeros(1, 3), torch.ones(1, 3), epsilon=0.2)
    torch.testing.assert_close(found, torch.tensor([[0.64, 0.81, 2.25]]))
    found.sum().backward()
    torch.testing.assert_close(values.grad, torch.tensor([[0.0, -1.8, -3.0]]))
