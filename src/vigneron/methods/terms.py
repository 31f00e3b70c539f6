"""Terms of a loss and metrics that several methods share."""

import math
from collections.abc import Sequence

from torch import Tensor

from vigneron.batch import Batch
from vigneron.config import KlConfig, MethodOptions
from vigneron.core.losses import AggregateMode, ClipLevel, cispo, clipped, clipped_ratio
from vigneron.core.preferences import expected_calibration_error, pair_accuracy
from vigneron.policy.logprobs import Scores
from vigneron.rollout.pairs import soft_labels
from vigneron.training.method import Metrics
from vigneron.training.update import Term


def with_advantages(batch: Batch, advantages_B: Tensor, **signals: Tensor) -> Batch:
    """The same advantage for every token of a sample."""
    advantages_BT = advantages_B[:, None].expand(batch.samples.completion_BT.shape)
    return batch.with_signals(**signals, advantages_BT=advantages_BT)


def clipped_terms(
    batch: Batch,
    now: Scores,
    epsilon: float,
    mode: AggregateMode = "tokens",
    level: ClipLevel = "token",
    *,
    epsilon_high: float | None = None,
    delta: float | None = None,
) -> list[Term]:
    """−min(r·A, clip(r)·A), and the share of tokens that were clipped, or of sequences where r is a sequence's."""
    samples = batch.samples
    ratio = (now.logprobs_BT, samples.behaviour_BT, batch.signals.advantages_BT, samples.mask_BT)
    values_BT = clipped_ratio(*ratio, epsilon=epsilon, epsilon_high=epsilon_high, delta=delta, level=level)
    clipped_BT = clipped(*ratio, epsilon=epsilon, epsilon_high=epsilon_high, delta=delta, level=level)
    share: AggregateMode = "tokens" if level == "token" else "samples"
    return [Term("loss/policy", values_BT, 1.0, mode), Term("clip_ratio/region_mean", clipped_BT, mode=share)]


def cispo_terms(batch: Batch, now: Scores, maximum: float, mode: AggregateMode) -> list[Term]:
    """−min(r, maximum)·A·log π, and the share of tokens whose weight was limited."""
    behaviour_BT = batch.samples.behaviour_BT
    values_BT = cispo(now.logprobs_BT, behaviour_BT, batch.signals.advantages_BT, maximum=maximum)
    limited_BT = (now.logprobs_BT.detach() - behaviour_BT > math.log(maximum)).to(now.logprobs_BT.dtype)
    return [Term("loss/policy", values_BT, 1.0, mode), Term("clip_ratio/region_mean", limited_BT)]


def policy_metrics(batch: Batch, now: Scores) -> list[Term]:
    """Of the policy that sampled: its entropy, and by how many nats sampling and training disagree."""
    mismatch_BT = (now.logprobs_BT - batch.samples.behaviour_BT).abs().detach()
    return [
        Term("entropy", now.entropy_BT.detach(), first_update_only=True),
        Term("logprob_mismatch", mismatch_BT, first_update_only=True),
    ]


def entropy_bonus(now: Scores, coefficient: float, mode: AggregateMode) -> list[Term]:
    return [Term("loss/entropy", now.entropy_BT, -coefficient, mode)] if coefficient else []


def one_update_notice(updates_per_step: int, without_effect: Sequence[str]) -> tuple[str, ...]:
    """With one update a step π₁ is π₀, and options that compare the two do nothing."""
    if updates_per_step > 1 or not without_effect:
        return ()
    names = " and ".join(without_effect)
    return (f"one update a step: the trained policy is the one that sampled, so {names} has no effect",)


def clip_notice(options: MethodOptions, updates_per_step: int, kl: KlConfig | None = None) -> tuple[str, ...]:
    """The same, for a clipping that is not the default, and a KL to the policy that sampled."""
    default = type(options).model_fields["clip_epsilon"].default
    clipping = ["clip_epsilon"] * (getattr(options, "clip_epsilon", default) != default)
    previous = ["kl.against: previous"] * (kl is not None and kl.against == "previous" and kl.estimator != "k1")
    return one_update_notice(updates_per_step, clipping + previous)


def explain_equal_rewards(metrics: Metrics) -> tuple[str, ...]:
    """Why a step trains nothing if no group has two different rewards."""
    if metrics.get("frac_reward_zero_std") != 1.0 or metrics.get("completions/answered") == 0.0:
        return ()  # without a delimiter (`explain_reward_reads`), rewards are equal for another reason
    return (
        "in no group of this step do two rewards differ, so every advantage is 0 and the step trains nothing "
        "(frac_reward_zero_std counts such groups): easier or harder prompts, a larger group_size or a higher "
        "temperature make them differ",
    )


def sides(values_B: Tensor) -> tuple[Tensor, Tensor]:
    """Of a paired batch, the values of the chosen texts and of the rejected ones."""
    return values_B[0::2], values_B[1::2]


def pair_labels(batch: Batch) -> Tensor | None:
    """The soft label of each pair of a paired batch; None where all pairs have hard ones."""
    labels_B = soft_labels(batch)
    return None if labels_B is None else labels_B[0::2]


def pair_term(name: str, values_N: Tensor, coefficient: float = 0.0) -> Term:
    """A value per pair, averaged over pairs: each of its two samples carries it."""
    return Term(name, values_N.repeat_interleave(2), coefficient, "samples")


def pair_metrics(margin_N: Tensor, probability_N: Tensor, loss_N: Tensor) -> Metrics:
    """Metrics of held-out preference pairs; `probability` is that of the preferred text being the better one."""
    return {
        "loss": float(loss_N.mean()),
        "accuracy": float(pair_accuracy(probability_N)),
        "margin": float(margin_N.mean()),
        "calibration_error": float(expected_calibration_error(probability_N)),
    }
