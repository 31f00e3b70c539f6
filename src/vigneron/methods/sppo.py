"""SPPO (Wu et al. 2024; `rlmt-grape` §5): self-play on win rates, with a squared loss.

π_t is the policy that sampled, so that a step is a round, or the one at the run's start (`against: reference`): then a
run is a round, and the next one has `model.name: runs/ROUND`; its samples are still the current policy's. The reward is
a sample's win rate against the others of its group, as `reward: {kind: preference}` gives it; P̂ counts the sample
itself as a tie, as the released code does. `sampling.mask_truncated` chooses which samples are trained, and leaves P̂
as it is.
"""

import torch

from vigneron.batch import Batch
from vigneron.config import SppoConfig
from vigneron.core.advantages import group_sizes
from vigneron.core.losses import sppo
from vigneron.core.masked import masked_sum
from vigneron.core.selection import best_and_worst
from vigneron.errors import UserError
from vigneron.methods.terms import policy_metrics
from vigneron.policy.logprobs import Scores
from vigneron.training.method import Method
from vigneron.training.parts import Parts
from vigneron.training.update import Term


def build(parts: Parts, options: SppoConfig) -> Method:
    sampler = options.against == "previous"
    checked = parts.config.reward.may_be_win_rate  # runs of earlier versions may have other rewards

    def advantage(batch: Batch) -> Batch:
        """No advantage: P̂ is the target; of each group the best and the worst sample are trained."""
        rewards_B, group_B = batch.signals.rewards_B, batch.samples.group_B
        if checked and ((rewards_B < 0) | (rewards_B > 1)).any():
            raise UserError("reward: `method: sppo` needs win rates from 0 to 1, and this reward leaves that range")
        size_B = group_sizes(rewards_B, group_B)
        win_rate_B = (rewards_B * (size_B - 1) + 0.5) / size_B
        if not sampler:
            batch = batch.with_signals(**parts.precompute(batch, parts.reference_pass))
        batch = batch.with_signals(returns_BT=win_rate_B[:, None].expand(batch.samples.completion_BT.shape))
        if options.samples == "all":
            return batch
        excluded_B = torch.ones_like(batch.samples.truncated_B)
        excluded_B[[i for pair in best_and_worst(batch.trained_rewards_B, group_B) for i in pair]] = False
        return batch.with_signals(excluded_B=excluded_B)

    def loss(batch: Batch, now: Scores) -> list[Term]:
        """L = ½ [log π/π_t − η (P̂ − ½)]², of whole texts."""
        mask_BT = batch.samples.mask_BT
        if sampler:
            ratio = (now.logprobs_BT, batch.samples.behaviour_BT)
        else:  # the reference's log-probs are those without top-k and top-p
            ratio = (now.untruncated_BT, batch.signals.reference_BT)
        logps_B, previous_B = (masked_sum(x, mask_BT) for x in ratio)
        values_B = sppo(logps_B, previous_B, batch.signals.returns_BT[:, 0], eta=options.eta)
        return [Term("loss/sppo", values_B, 1.0, "samples"), *policy_metrics(batch, now)]

    update = parts.gradient_update(
        parts.score, loss, updates_per_step=options.updates_per_step, after_update=parts.kl_previous
    )
    return Method(parts.rollout, parts.reward, advantage, update)
