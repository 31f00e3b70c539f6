"""What several methods have in common: terms of a loss, figures to log, a line for options that do nothing."""

from collections.abc import Callable, Sequence
from typing import Literal

from torch import Tensor

from vigneron.batch import Batch
from vigneron.config import KlConfig
from vigneron.core import kl
from vigneron.core.draws import Sampling
from vigneron.core.losses import AggregateMode, clipped, clipped_ratio
from vigneron.core.preferences import expected_calibration_error, pair_accuracy
from vigneron.policy.logprobs import Scores, score
from vigneron.policy.model import Policy
from vigneron.training.method import Metrics
from vigneron.training.update import Term


def clipped_terms(
    batch: Batch,
    now: Scores,
    epsilon: float,
    mode: AggregateMode = "tokens",
    level: Literal["token", "sequence"] = "token",
) -> list[Term]:
    """−min(r·A, clip(r)·A), and how many tokens were clipped."""
    ratio = (now.logprobs_BT, batch.behaviour_BT, batch.advantages_BT, batch.mask_BT)
    return [
        Term("loss/policy", clipped_ratio(*ratio, epsilon=epsilon, level=level), 1.0, mode),
        Term("clip_ratio/region_mean", clipped(*ratio, epsilon=epsilon, level=level)),
    ]


def kl_penalty(options: KlConfig, batch: Batch, now: Scores) -> Tensor:
    """A value per token of the KL that `options` name, to the reference or to the policy that sampled."""
    if options.estimator == "exact":
        return now.exact_kl_BT
    estimator = kl.ESTIMATORS[options.estimator]
    if options.against == "reference":
        return estimator(now.untruncated_BT, batch.reference_BT)
    return estimator(now.logprobs_BT, batch.behaviour_BT)


def kl_figure(batch: Batch, now: Scores) -> Term:
    """D_KL(π₀ ‖ reference) by k1, whatever the penalty's estimator: unbiased, so of one meaning in all methods."""
    return Term("kl", kl.k1(now.untruncated_BT, batch.reference_BT).detach(), of_sampler=True)


def mismatch_figure(batch: Batch, now: Scores) -> Term:
    """|log π₀ when scored − log π₀ when sampled|: what sampling and training disagree by, in nats."""
    return Term("logprob_mismatch", (now.logprobs_BT - batch.behaviour_BT).abs().detach(), of_sampler=True)


def movement(policy: Policy, sampling: Sampling) -> Callable[[Batch], Term]:
    """KL(π₀ ‖ π₁) after the updates: how far the step has moved the policy."""

    def moved(batch: Batch) -> Term:
        return Term("kl_previous", kl.k3(batch.behaviour_BT, score(policy, batch, sampling).logprobs_BT))

    return moved


def entropy_terms(now: Scores, coefficient: float, mode: AggregateMode) -> list[Term]:
    """The entropy of the policy that sampled, as a figure; and a bonus for it, where it has one."""
    figure = Term("entropy", now.entropy_BT.detach(), of_sampler=True)
    return [figure, Term("loss/entropy", now.entropy_BT, -coefficient, mode)] if coefficient else [figure]


def comparing(clip_epsilon: float | None, options: KlConfig) -> list[str]:
    """Options that compare π₁ with π₀."""
    idle = ["clip_epsilon"] * (clip_epsilon is not None)
    return idle + ["kl.against: previous"] * (options.against == "previous" and options.estimator != "k1")


def idle_notice(updates_per_step: int, idle: Sequence[str]) -> tuple[str, ...]:
    """With one update a step π₁ is π₀, and what compares the two does nothing."""
    if updates_per_step > 1 or not idle:
        return ()
    return (f"one update a step: the trained policy is the one that sampled, so {' and '.join(idle)} has no effect",)


def sides(values_B: Tensor) -> tuple[Tensor, Tensor]:
    """Of a paired batch, the values of the chosen texts and of the rejected ones."""
    return values_B[0::2], values_B[1::2]


def pair_term(name: str, values_N: Tensor, coefficient: float = 0.0) -> Term:
    """A value per pair, averaged over pairs: each of its two samples carries it."""
    return Term(name, values_N.repeat_interleave(2), coefficient, "samples")


def held_out_pairs(margin_N: Tensor, probability_N: Tensor, loss_N: Tensor) -> Metrics:
    """Figures of preference pairs: `probability` is what the preferred text is given of being the better one."""
    return {
        "loss": float(loss_N.mean()),
        "accuracy": float(pair_accuracy(probability_N)),
        "margin": float(margin_N.mean()),
        "calibration_error": float(expected_calibration_error(probability_N)),
    }
