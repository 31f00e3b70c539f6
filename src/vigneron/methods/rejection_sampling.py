"""Rejection sampling (`rlmt-grape` §3): fine-tuning on the best of a prompt's samples, in rounds.

A step is a round: G samples of each prompt, ranked by any reward, the best kept, and `updates_per_round` updates of SFT
on them (the paper's discrete learning). What is kept is logged beside what was sampled, so that a collapse is seen.
"""

import math

from vigneron.batch import Batch
from vigneron.config import RejectionSamplingConfig
from vigneron.core.losses import nll
from vigneron.core.selection import best_of_group
from vigneron.data.prompts import conversation_text
from vigneron.methods.terms import with_advantages
from vigneron.policy.logprobs import Scores
from vigneron.training.method import Method, Metrics
from vigneron.training.parts import Parts
from vigneron.training.update import Term


def build(parts: Parts, options: RejectionSamplingConfig) -> Method:
    def advantage(batch: Batch) -> Batch:
        """A = 1 for the best of a group; all others are rejected   (§3, steps 3-4)."""
        kept_B = best_of_group(
            batch.trained_rewards_B, batch.samples.group_B, keep=options.keep, min_reward=options.min_reward
        )
        kept = with_advantages(batch, kept_B.to(batch.samples.behaviour_BT.dtype), excluded_B=~kept_B)
        return kept.with_metrics(kept_metrics(batch, kept_B.tolist()))

    def loss(batch: Batch, now: Scores) -> list[Term]:
        """L = −log π(y | x)   (eq. 2), on the samples that were kept   (§3, step 5)."""
        return [
            Term("loss/nll", nll(now.logprobs_BT), 1.0, options.aggregation),
            Term("entropy", now.entropy_BT.detach(), first_update_only=True),
        ]

    update = parts.gradient_update(parts.score_untruncated, loss, updates_per_step=options.updates_per_round)
    return Method(parts.rollout, parts.reward, advantage, update, explain=explain)


def kept_metrics(batch: Batch, kept: list[bool]) -> Metrics:
    """Of the kept samples: their share, their reward, distinct texts a prompt, and how many groups kept none."""
    at = [sample for sample, is_kept in enumerate(kept) if is_kept]
    groups, rewards = batch.samples.group_B.tolist(), batch.signals.rewards_B.tolist()
    prompts = {groups[sample] for sample in at}
    texts = {conversation_text(batch.samples.completions[sample]).strip() for sample in at}
    return {
        "kept/share": len(at) / len(kept),
        "kept/reward": sum(rewards[sample] for sample in at) / len(at) if at else math.nan,
        "kept/distinct": len(texts) / len(prompts) if at else math.nan,
        "kept/groups_rejected": len(set(groups) - prompts),
    }


def explain(metrics: Metrics) -> tuple[str, ...]:
    """Why a round trains nothing."""
    if metrics.get("kept/share") != 0.0:
        return ()
    return (
        "no sample of this round was kept, so the round trains nothing: a lower method.min_reward, easier prompts or "
        "a larger group_size leave some",
    )
