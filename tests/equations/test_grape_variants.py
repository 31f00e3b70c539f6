"""GRAPE's variants, each equation against numbers worked out by hand, and where they become GRPO."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vigneron.batch import Batch, Samples, Signals
from vigneron.core.advantages import group_relative, origin_relative
from vigneron.core.losses import importance_ratio, topr
from vigneron.core.off_policy import luffy, scaffold_share, topr_weight
from vigneron.methods.grape import origin_metrics
from vigneron.training.grape_prompts import better_siblings
from vigneron.training.self_distillation import clipped_difference
from vigneron.training.training_prompt import corrected

FRESH, REVISED, DEMONSTRATED = 0, 1, 2
REWARDS = st.lists(st.floats(-3, 3) | st.just(math.nan), min_size=1, max_size=12)


def numbers(*values: float, gradient: bool = False) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=gradient)


def batch_of(behaviour: Tensor, drawn: Tensor, advantages: list[float], **signals: Tensor) -> Batch:
    """Texts of two tokens, the second of which is missing where its log-prob is infinite."""
    lengths = [2 if torch.isfinite(row[1]) or row[1].isnan() else 1 for row in behaviour]
    count = len(lengths)
    samples = Samples(
        prompt_ids=((1, 2),) * count,
        completion_BT=torch.ones(count, 2, dtype=torch.long),
        spans=tuple(((2, 2 + length),) for length in lengths),
        behaviour_BT=behaviour,
        truncated_B=torch.zeros(count, dtype=torch.bool),
        group_B=torch.zeros(count, dtype=torch.long),
        sample_B=torch.arange(count),
        prompts=("q",) * count,
        completions=("a",) * count,
        drawn_BT=drawn,
    )
    advantages_BT = numbers(*advantages)[:, None].expand(count, 2)
    return Batch(samples, Signals(advantages_BT=advantages_BT, **signals))


# ---------------------------------------------------------------------------------------------- TOPR's weights


def test_toprs_weight_by_hand() -> None:
    """A good text has weight 1 whatever its ratio; a bad one ¼ where π/μ = ¼, and 1 where it is 3."""
    logps, behaviour = numbers(-3.0, -3.0, -3.0), numbers(-3 + math.log(4), -3 + math.log(4), -3 - math.log(3))
    assert topr_weight(logps, behaviour, numbers(0.5, -0.5, -0.5)).tolist() == pytest.approx([1.0, 0.25, 1.0])
    assert topr_weight(logps, behaviour, numbers(0.0, 0.0, 0.0)).tolist() == [1.0, 1.0, 1.0]


def test_the_weighted_advantage_has_the_gradient_of_toprs_loss() -> None:
    """−w A log π(y) of whole texts: what GRAPE's advantage times the weight is, at a ratio of 1."""
    logps, behaviour, advantages = numbers(-2.0, -5.0, gradient=True), numbers(-1.0, -2.0), numbers(0.5, -0.5)
    topr(logps, behaviour, advantages).sum().backward()
    weights = topr_weight(logps.detach(), behaviour, advantages)
    ours = logps.detach().clone().requires_grad_()
    importance_ratio(ours[:, None], ours.detach()[:, None], (weights * advantages)[:, None]).sum().backward()
    torch.testing.assert_close(ours.grad, logps.grad)


def test_corrections_by_hand() -> None:
    """Two tokens with ratios ½ and ¼, and then 4 and ¼ (whole texts: ⅛ and 1); then a demonstration."""
    ratios = numbers(0.5, 0.25, 4.0, 0.25).reshape(2, 2).log()
    behaviour = torch.cat([numbers(-1.0, -1.0)[None], numbers(-1.0, -1.0)[None], numbers(-9.0, -9.0)[None]])
    drawn = torch.cat([behaviour[:2] - ratios, numbers(math.nan, math.nan)[None]])
    bad = batch_of(behaviour, drawn, [-1.0, -1.0, -1.0])
    good = batch_of(behaviour, drawn, [1.0, 2.0, 3.0])
    assert corrected(bad, "truncated").signals.advantages_BT.tolist() == [
        pytest.approx([-0.5, -0.25]),
        pytest.approx([-1.0, -0.25]),
        [-1.0, -1.0],
    ]
    assert corrected(bad, "topr").signals.advantages_BT.tolist() == [
        pytest.approx([-0.125, -0.125]),
        pytest.approx([-1.0, -1.0]),
        [-1.0, -1.0],
    ]
    assert corrected(bad, "topr").signals.metrics["drawn/weight"] == pytest.approx((0.125 + 1 + 1) / 3)
    # TOPR leaves what is good whole, truncation does not.
    assert torch.equal(corrected(good, "topr").signals.advantages_BT, good.signals.advantages_BT)
    assert corrected(good, "truncated").signals.advantages_BT[0].tolist() == pytest.approx([0.5, 0.25])


@pytest.mark.parametrize("correction", ["truncated", "topr"])
def test_what_was_sampled_where_it_is_trained_has_weight_one(correction: str) -> None:
    behaviour = numbers(-1.0, -0.3, -2.0, -0.7).reshape(2, 2)
    batch = batch_of(behaviour, behaviour, [-1.0, 1.0])
    assert torch.equal(corrected(batch, correction).signals.advantages_BT, batch.signals.advantages_BT)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------- baseline: origin


def relative(rewards: list[float], groups: list[int], origins: list[int], **keys: str) -> list[float]:
    origin_B = torch.tensor(origins)
    of = (numbers(*rewards), torch.tensor(groups), origin_B, origin_B == DEMONSTRATED)
    return origin_relative(*of, **keys).tolist()  # type: ignore[arg-type]


def test_each_origin_has_its_own_baseline_by_hand() -> None:
    """Fresh 1 and 0 (mean ½), revised 0.2 and 0.4 (mean 0.3), one demonstration, against the group's mean 0.52."""
    rewards, origins = [1.0, 0.2, 0.0, 0.4, 1.0], [FRESH, REVISED, FRESH, REVISED, DEMONSTRATED]
    assert relative(rewards, [7] * 5, origins) == pytest.approx([0.5, -0.1, -0.5, 0.1, 0.48])
    spread = math.sqrt(2) / 2  # of 1 and 0, with n − 1
    assert relative(rewards, [7] * 5, origins, scale="std")[0] == pytest.approx(0.5 / (spread + 1e-4))


def test_one_alone_of_its_kind_gets_nothing_and_missing_rewards_leave_the_baseline() -> None:
    """Groups 3 and 5: the lone revision gets 0; a NaN gets 0, and its neighbour, then alone, too."""
    groups, origins = [3, 5, 3, 5, 3, 3], [FRESH, FRESH, REVISED, FRESH, FRESH, DEMONSTRATED]
    rewards = [0.0, math.nan, 0.9, 0.7, 1.0, math.nan]
    assert relative(rewards, groups, origins) == pytest.approx([-0.5, 0.0, 0.0, 0.0, 0.5, 0.0])


@settings(max_examples=20)
@given(REWARDS, st.data())
def test_of_one_origin_it_is_the_groups_baseline(rewards: list[float], data: st.DataObject) -> None:
    groups = data.draw(st.lists(st.integers(-2, 3), min_size=len(rewards), max_size=len(rewards)))
    for origin in (FRESH, REVISED, DEMONSTRATED):
        plain = group_relative(numbers(*rewards), torch.tensor(groups)).tolist()
        assert relative(rewards, groups, [origin] * len(rewards)) == plain


@settings(max_examples=20)
@given(REWARDS, st.data())
def test_the_sampled_answers_of_each_origin_sum_to_zero(rewards: list[float], data: st.DataObject) -> None:
    size = {"min_size": len(rewards), "max_size": len(rewards)}
    groups = data.draw(st.lists(st.integers(0, 2), **size))
    origins = data.draw(st.lists(st.integers(0, 2), **size))
    advantages = relative(rewards, groups, origins)
    assert not any(map(math.isnan, advantages))
    for kind in {(g, o) for g, o in zip(groups, origins, strict=True) if o != DEMONSTRATED}:
        of_kind = [a for a, *key in zip(advantages, groups, origins, strict=True) if tuple(key) == kind]
        assert sum(of_kind) == pytest.approx(0.0, abs=1e-9)


# ---------------------------------------------------------------------------------------------- LUFFY


def test_luffys_loss_and_gradient_by_hand() -> None:
    """π = 0.1, γ = 0.1: f = ½, and ∇log π has the weight γπ/(π + γ)² = ¼. π = 0.4: f = 0.8 and the weight 0.16."""
    logprobs = numbers(math.log(0.1), math.log(0.4), gradient=True)[None]
    losses = luffy(logprobs, numbers(2.0, -1.0)[None], gamma=0.1)
    assert losses.tolist() == [pytest.approx([-1.0, 0.8])]
    (gradient,) = torch.autograd.grad(losses.sum(), logprobs)
    assert gradient.tolist() == [pytest.approx([-0.5, 0.16])]


@settings(max_examples=20)
@given(st.floats(-8, -0.01), st.floats(-2, 2))
def test_luffys_limits(logprob: float, advantage: float) -> None:
    """γ → 0: f → 1, a constant without a gradient. γ → ∞: γ f → π, the importance weight of a certain source."""
    logprobs = numbers(logprob, gradient=True)[None]
    small = luffy(logprobs, numbers(advantage)[None], gamma=1e-12)
    assert float(small.detach()) == pytest.approx(-advantage, abs=1e-7)
    assert float(torch.autograd.grad(small.sum(), logprobs)[0]) == pytest.approx(0.0, abs=1e-7)
    large = 1e9 * luffy(logprobs, numbers(advantage)[None], gamma=1e9)
    certain = importance_ratio(logprobs, torch.zeros_like(logprobs), numbers(advantage)[None])
    assert float(large.detach()) == pytest.approx(float(certain.detach()), rel=1e-6)
    gradients = [torch.autograd.grad(one.sum(), logprobs)[0] for one in (large, certain)]
    assert float(gradients[0]) == pytest.approx(float(gradients[1]), rel=1e-6)


def test_luffy_takes_most_from_tokens_near_gamma() -> None:
    """Among all probabilities, π = γ has the largest weight, ¼: rare tokens are not drowned by likely ones."""
    logprobs = torch.linspace(-12, 0, 4001, dtype=torch.float64)[None].requires_grad_()
    (gradient,) = torch.autograd.grad(luffy(logprobs, torch.ones_like(logprobs), gamma=0.1).sum(), logprobs)
    assert float(gradient.abs().max()) == pytest.approx(0.25, rel=1e-5)
    assert logprobs[0, gradient.abs().argmax()].exp().item() == pytest.approx(0.1, rel=1e-2)


# ---------------------------------------------------------------------------------------------- RuscaRL's help


def test_scaffolding_by_hand() -> None:
    """At the start of training the four of a group see 1, ⅔, ⅓ and 0 of the items; at x₀ half as much; then nothing."""
    assert [scaffold_share(i, 4, 0.0) for i in range(4)] == pytest.approx([1, 2 / 3, 1 / 3, 0], abs=1e-9)
    assert [scaffold_share(i, 4, 0.2) for i in range(4)] == pytest.approx([1 / 2, 1 / 3, 1 / 6, 0])
    assert scaffold_share(0, 4, 0.21) == pytest.approx(1 / (1 + math.exp(1.25)))
    assert scaffold_share(0, 4, 1.0) == pytest.approx(0.0, abs=1e-30)
    assert scaffold_share(0, 4, 1.0, steepness=1e9) == pytest.approx(0.0, abs=1e-30), "no overflow"


@settings(max_examples=20)
@given(st.integers(2, 16), st.floats(0, 1), st.floats(0.1, 1000))
def test_help_fades_within_the_group_and_over_time(size: int, half_at: float, steepness: float) -> None:
    keys = {"half_at": half_at, "steepness": steepness}
    places = [scaffold_share(i, size, 0.3, **keys) for i in range(size)]
    times = [scaffold_share(0, size, t / 20, **keys) for t in range(21)]
    for falling in (places, times):
        assert all(later <= before for before, later in pairwise(falling))
        assert all(0 <= share <= 1 for share in falling)


# ---------------------------------------------------------------------------------------------- hindsight


def test_the_signal_of_hindsight_by_hand() -> None:
    """Ratios 2, ¼ (clipped to −1 nat), a padding and a token that neither can write."""
    before = numbers(-2.0, -2.0, 0.0, -math.inf)[None]
    after = numbers(-2 + math.log(2), -2 - math.log(4), 5.0, -math.inf)[None]
    mask = torch.tensor([[True, True, False, True]])
    assert clipped_difference(before, after, mask, 1.0).tolist() == [pytest.approx([math.log(2), -1.0, 0.0, 0.0])]


def test_the_mean_of_the_signal_is_minus_the_kl() -> None:
    """E over the student's tokens of d · ∇log π is −∇KL(π ‖ teacher), by autograd over the whole vocabulary."""
    logits = numbers(0.3, -1.0, 0.7, 0.1, gradient=True)
    teacher = numbers(1.0, 0.2, -0.5, 0.0).log_softmax(0)
    student = logits.log_softmax(0)
    signal = clipped_difference(student.detach()[None], teacher[None], torch.ones(1, 4).bool(), 1e9)[0]
    surrogate = (student.detach().exp() * signal * student).sum()
    kl = (student.exp() * (student - teacher)).sum()
    ours, theirs = (torch.autograd.grad(one, logits, retain_graph=True)[0] for one in (surrogate, kl))
    torch.testing.assert_close(ours, -theirs)


def test_the_best_of_a_group_is_shown_to_those_below_it() -> None:
    """The first of two equal ones; a missing reward is neither shown nor told."""
    batch = batch_of(torch.zeros(5, 2).double(), torch.zeros(5, 2).double(), [0.0] * 5)
    rewarded = batch.with_signals(rewards_B=numbers(0.2, 0.9, math.nan, 0.9, 0.5)).with_samples(
        group_B=torch.tensor([4, 4, 4, 4, 1])
    )
    assert better_siblings(rewarded) == [1, None, None, None, None]


# ---------------------------------------------------------------------------------------------- metrics by origin


def test_metrics_of_each_origin_by_hand() -> None:
    """Tokens count, not texts: the second fresh text has one. A missing reward is in neither mean."""
    behaviour = numbers(-1, -1, -1, math.inf, -1, -1, -1, -1).reshape(4, 2)
    batch = batch_of(behaviour, behaviour, [0.3, -0.6, 0.2, 5.0], rewards_B=numbers(1.0, 0.0, 0.4, math.nan))
    batch = batch.with_samples(extras={"origin": ("fresh", "fresh", "revised", "revised")})
    assert origin_metrics(batch) == pytest.approx(
        {
            "origin/reward/fresh": 0.5,
            "origin/advantage/fresh": (0.3 + 0.3 - 0.6) / 3,
            "origin/reward/revised": 0.4,
            "origin/advantage/revised": 0.2,
        }
    )
