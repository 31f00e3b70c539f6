"""GRPO as Dr. GRPO (`rlmt-grape` §4.8, eq. 13-14): the clipped ratio with a group-relative advantage, and no critic.

Eq. 14 has no KL: the first GRPO's β · KL(π ‖ reference) stands beside it, and `kl.coefficient: 0` is eq. 14 alone,
without the reference's pass. Its (1/QG) Σ Σ Σₜ is `aggregation: sum_over_samples`; the default differs from it by one
factor a step, the mean length. The first GRPO is `aggregation: samples`, `scale_by_std: true` and `kl.estimator: k3`.
"""

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from vigneron.batch import Batch, map_parts
from vigneron.config import GroupRelativeConfig
from vigneron.core.advantages import group_relative
from vigneron.methods.shared import (
    clipped_terms,
    comparing,
    idle_notice,
    kl_figure,
    kl_penalty,
    mismatch_figure,
    movement,
)
from vigneron.policy.logprobs import ExactKl, Scores, reference_view, score
from vigneron.rollout.on_policy import OnPolicy, sampling_of
from vigneron.training.kl_controller import KlController
from vigneron.training.method import Method, Metrics, Parts
from vigneron.training.update import GradientUpdate, Term, players_of


def build(parts: Parts) -> Method:
    config, policy, reference = parts.config, parts.policy, parts.reference
    options = config.method
    assert isinstance(options, GroupRelativeConfig)
    sampling = sampling_of(config)
    controller = KlController.of(options.kl)
    has_kl = options.kl.coefficient > 0
    exact = has_kl and options.kl.estimator == "exact"

    def advantage(batch: Batch) -> Batch:
        """A = R − mean of the group   (eq. 13), the same for every token of a sample."""
        scale: Literal["none", "std"] = "std" if options.scale_by_std else "none"
        advantages_B1 = group_relative(batch.rewards_B, batch.group_B, scale=scale)[:, None]
        seen = map_parts(batch, config.tokens_at_once, look) if has_kl else {}
        return replace(batch, **seen, advantages_BT=advantages_B1.expand(batch.completion_BT.shape))

    @torch.no_grad()
    def look(part: Batch) -> dict[str, Tensor]:
        return reference_view(reference, part, sampling, keep_hidden=exact)

    def score_now(batch: Batch) -> Scores:
        return score(policy, batch, sampling, exact_kl=ExactKl(reference) if exact else None)

    def loss(batch: Batch, now: Scores) -> list[Term]:
        """L = −min(r·A, clip(r)·A) + β D_KL   (eq. 14, and the first GRPO's β)."""
        terms = [
            *clipped_terms(batch, now, options.clip_epsilon, options.aggregation, options.clip_level),
            Term("entropy", now.entropy_BT.detach(), of_sampler=True),
            mismatch_figure(batch, now),
        ]
        if has_kl:
            penalty = Term("loss/kl", kl_penalty(options.kl, batch, now), controller.coefficient, options.aggregation)
            # k1 needs samples of the policy's own, which GRAPE's are not: where the exact KL is known, it is shown.
            figure = Term("kl", now.exact_kl_BT.detach(), of_sampler=True) if exact else kl_figure(batch, now)
            terms += [penalty, figure]
        return terms

    players = players_of(config.optimizer, policy.trainable())
    moved, adapts = movement(policy, sampling), controller if has_kl else None
    idle = None if has_kl else lambda batch: (batch.advantages_BT == 0).all(1)
    return Method(
        rollout=OnPolicy.of(config, policy, sampling),
        reward=parts.reward,
        advantage=advantage,
        update=GradientUpdate.of(config, options.updates_per_step, score_now, loss, players, moved, adapts, idle=idle),
        resamples=options.resamples,
        notices=_notices(options),
        explain=explain_zero,
    )


def _notices(options: GroupRelativeConfig) -> tuple[str, ...]:
    """A loss of 0 puzzles many: where every ratio is 1 it is minus the mean advantage, and its gradient is not 0."""
    idle = idle_notice(options.updates_per_step, comparing(options.clip_epsilon, options.kl))
    return (*idle, "a group's advantages sum to 0, so loss/policy is about 0: reward and grad_norm/actor show progress")


def explain_zero(metrics: Metrics) -> tuple[str, ...]:
    """Why nothing is learned from a step of which no group has two different rewards."""
    if metrics.get("frac_reward_zero_std") != 1.0:
        return ()
    return (
        "in no group of this step do two rewards differ, so no advantage is other than 0 and the rewards teach nothing "
        "(frac_reward_zero_std counts such groups): easier or harder prompts, a larger group_size or a higher "
        "temperature make them differ",
    )
