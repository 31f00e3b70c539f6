"""GRPO as Dr. GRPO (`rlmt-grape` §4.8, eq. 13-14): the clipped ratio with a group-relative advantage, and no critic.

Eq. 14 has no KL: the β · KL(π ‖ reference) of the original GRPO (DeepSeekMath) is added to it, and `kl.coefficient: 0`
is eq. 14 alone, without the reference's pass. Its (1/QG) Σ Σ Σₜ is `aggregation: sum_over_samples`; the default differs
from it by one factor a step, the mean length. The original GRPO has `aggregation: samples`, `scale_by_std: true` and
`kl.estimator: k3`. GSPO is `level: geometric`; DAPO's clip-higher `clip_epsilon_high`; CISPO `loss: cispo`.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from vigneron.batch import Batch
from vigneron.config import Config, GroupRelativeConfig
from vigneron.core.advantages import group_relative
from vigneron.methods.terms import (
    cispo_terms,
    clip_notice,
    clipped_terms,
    explain_equal_rewards,
    policy_metrics,
    with_advantages,
)
from vigneron.policy.logprobs import Scores
from vigneron.training.kl_penalty import KlPenalty
from vigneron.training.method import Method
from vigneron.training.parts import Parts
from vigneron.training.update import Term


def baseline(batch: Batch, options: GroupRelativeConfig) -> Tensor:
    """A = R − mean of the group   (eq. 13)."""
    return group_relative(
        batch.signals.rewards_B, batch.samples.group_B, scale="std" if options.scale_by_std else "none"
    )


def progress_notices(config: Config, options: GroupRelativeConfig) -> tuple[str, ...]:
    """What shows progress, where the reward's mean does not."""
    if options.trains_its_reward:
        return ("the reward is a model's that is trained too: accuracy and eval/reward show progress",)
    if config.reward.smallest_group > 1 and getattr(config.reward, "combine", None) != "tie_break":
        return (
            "the reward compares samples with each other, so its mean stays the same: accuracy (of training and "
            "held-out samples) and entropy show progress",
        )
    return ()


def build(
    parts: Parts,
    options: GroupRelativeConfig,
    *,
    advantages_of: Callable[[Batch, Any], Tensor] = baseline,
    reshape: Callable[[Batch, Scores, Tensor], Tensor] = lambda batch, now, losses_BT: losses_BT,
) -> Method:
    """`advantages_of` and `reshape`, which is given the policy's loss of each token, are for methods made from it."""
    has_kl = options.kl.coefficient > 0
    kl = KlPenalty(parts, options.kl, logged=has_kl, penalised=has_kl, exact_metric=True)

    def advantage(batch: Batch) -> Batch:
        """The same advantage for every token of a sample."""
        return with_advantages(batch, advantages_of(batch, options), **parts.precompute(batch, *kl.passes))

    def score(batch: Batch) -> Scores:
        return parts.score(batch, exact_kl=kl.exact)

    def surrogate(batch: Batch, now: Scores) -> list[Term]:
        if options.loss == "cispo":
            return cispo_terms(batch, now, options.cispo_maximum, options.aggregation)
        clip = {"epsilon_high": options.clip_epsilon_high, "delta": options.clip_delta}
        return clipped_terms(batch, now, options.clip_epsilon, options.aggregation, options.level, **clip)

    def loss(batch: Batch, now: Scores) -> list[Term]:
        """L = −min(r·A, clip(r)·A) + β D_KL   (eq. 14, and the original GRPO's β)."""
        policy, *limited = surrogate(batch, now)
        return [
            replace(policy, values=reshape(batch, now, policy.values)),
            *limited,
            *policy_metrics(batch, now),
            *kl.terms(batch, now, options.aggregation),
        ]

    update = parts.gradient_update(
        score,
        loss,
        updates_per_step=options.updates_per_step,
        after_update=parts.kl_previous,
        controller=kl.controller if has_kl else None,
        # Without a KL a sample whose advantage is 0 has no gradient, and needs no pass.
        idle=None if has_kl else lambda batch: (batch.signals.advantages_BT == 0).all(1),
    )
    notices = (
        *clip_notice(options, options.updates_per_step, options.kl),
        *progress_notices(parts.config, options),
    )
    resamples, explain = options.resamples, explain_equal_rewards
    return Method(parts.rollout, parts.reward, advantage, update, resamples=resamples, notices=notices, explain=explain)
