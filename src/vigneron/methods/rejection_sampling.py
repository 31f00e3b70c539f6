"""Rejection sampling (`rlmt-grape` §3): fine-tuning on the best of a prompt's samples, in rounds.

A step is a round: G samples of each prompt, ranked by any reward, the best kept, and `updates_per_round` updates of SFT
on them (the paper's discrete learning). What is kept is logged beside what was sampled, so that a collapse is seen.
"""

import math
from dataclasses import replace

from vigneron.batch import Batch
from vigneron.config import RejectionSamplingConfig
from vigneron.core.draws import Sampling
from vigneron.core.losses import nll
from vigneron.core.selection import best_of_group
from vigneron.data.prompts import completion_text
from vigneron.policy.logprobs import Scores, score
from vigneron.rollout.on_policy import OnPolicy, sampling_of
from vigneron.training.method import Method, Metrics, Parts
from vigneron.training.update import GradientUpdate, Term, players_of


def build(parts: Parts) -> Method:
    config, policy = parts.config, parts.policy
    options = config.method
    assert isinstance(options, RejectionSamplingConfig)
    whole = Sampling()

    def advantage(batch: Batch) -> Batch:
        """A = 1 for the best of a group; all others are rejected   (§3, steps 3-4)."""
        kept_B = best_of_group(batch.teaching_B, batch.group_B, keep=options.keep, min_reward=options.min_reward)
        advantages_BT = kept_B[:, None].to(batch.behaviour_BT.dtype).expand(batch.completion_BT.shape)
        figures = {**batch.figures, **kept_figures(batch, kept_B.tolist())}
        return replace(batch, advantages_BT=advantages_BT, excluded_B=~kept_B, figures=figures)

    def score_now(batch: Batch) -> Scores:
        return score(policy, batch, whole)

    def loss(batch: Batch, now: Scores) -> list[Term]:
        """L = −log π(y | x)   (eq. 2), on the samples that were kept   (§3, step 5)."""
        return [
            Term("loss/nll", nll(now.logprobs_BT), 1.0, options.aggregation),
            Term("entropy", now.entropy_BT.detach(), of_sampler=True),
        ]

    players = players_of(config.optimizer, policy.trainable())
    return Method(
        rollout=OnPolicy.of(config, policy, sampling_of(config)),
        reward=parts.reward,
        advantage=advantage,
        update=GradientUpdate.of(config, options.updates_per_round, score_now, loss, players),
        explain=explain_nothing_kept,
    )


def kept_figures(batch: Batch, kept: list[bool]) -> Metrics:
    """What was kept: how much, how good, from how many prompts, and how many different texts for each of those."""
    at = [sample for sample, is_kept in enumerate(kept) if is_kept]
    groups, rewards = batch.group_B.tolist(), batch.rewards_B.tolist()
    prompts = {groups[sample] for sample in at}
    texts = {completion_text(batch.completions[sample]).strip() for sample in at}
    return {
        "kept/share": len(at) / len(kept),
        "kept/reward": sum(rewards[sample] for sample in at) / len(at) if at else math.nan,
        "kept/distinct": len(texts) / len(prompts) if at else math.nan,
        "kept/groups_rejected": len(set(groups) - prompts),
    }


def explain_nothing_kept(metrics: Metrics) -> tuple[str, ...]:
    """Why nothing is learned from a round."""
    if metrics.get("kept/share") != 0.0:
        return ()
    return (
        "no sample of this round was kept, so nothing is learned from it: a lower method.min_reward, easier prompts or "
        "a larger group_size leave some",
    )
