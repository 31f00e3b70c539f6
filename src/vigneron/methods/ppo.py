"""PPO (`rlmt-grape` §4.6-4.7, eq. 11-12): the clipped ratio against the policy that sampled, a critic before every
token, and the KL to the reference in the reward.

`advantage: eq_12` is the paper's A' = R − β (log π₀ − log reference) − V at each token; `gae` sums what follows it.
"""

from functools import partial

from torch import Tensor

from vigneron.batch import Batch
from vigneron.config import PpoConfig
from vigneron.core.advantages import gae
from vigneron.core.kl import k1
from vigneron.core.losses import aggregate
from vigneron.methods.terms import clip_notice, clipped_terms, entropy_bonus, policy_metrics
from vigneron.methods.token_critic import token_critic, value_term, with_returns
from vigneron.methods.token_rewards import token_rewards
from vigneron.policy.logprobs import Scores
from vigneron.training.kl_penalty import KlPenalty
from vigneron.training.method import Method
from vigneron.training.parts import Parts
from vigneron.training.update import Term


def build(parts: Parts, options: PpoConfig) -> Method:
    critic = token_critic(parts.policy, options.critic)
    kl, score = KlPenalty(parts, options.kl), partial(parts.score, critic=critic)

    def advantage(batch: Batch) -> Batch:
        """A from R' = R − β k1   (eq. 12): at each token by itself, or through GAE. Logs the KL of the whole batch."""
        before = parts.precompute(batch, policy_pass, *kl.passes)
        k1_BT = k1(before.pop("untruncated_BT"), before["reference_BT"])
        if batch.trained_BT.any():
            batch = batch.with_metrics({"kl": float(aggregate(k1_BT, batch.trained_BT))})
        penalty_BT = kl.coefficient * k1_BT
        rewards_B, values_BT, mask_BT = batch.signals.rewards_B, before["values_BT"], batch.samples.mask_BT
        if options.advantage == "eq_12":
            returns_BT = rewards_B[:, None] - penalty_BT
            advantages_BT = returns_BT - values_BT
        else:
            rewards_BT = token_rewards(parts, batch) - penalty_BT
            advantages_BT, returns_BT = gae(rewards_BT, values_BT, mask_BT, gamma=options.gamma, lam=options.lam)
        return with_returns(batch.with_signals(**before, advantages_BT=advantages_BT), returns_BT)

    def policy_pass(batch: Batch) -> dict[str, Tensor]:
        now = score(batch)
        return {"untruncated_BT": now.untruncated_BT, "values_BT": now.values_BT}

    def loss(batch: Batch, now: Scores) -> list[Term]:
        """L = −min(r·A, clip(r)·A)   (eq. 11), and λ_v (V − R)²."""
        return [
            *clipped_terms(batch, now, options.clip_epsilon, options.aggregation),
            value_term(options.critic, batch, now),
            *entropy_bonus(now, options.entropy_coefficient, options.aggregation),
            *policy_metrics(batch, now),
        ]

    updates, minibatches = options.updates_per_step, options.minibatches
    update = parts.gradient_update(
        score, loss, critic, updates, minibatches, after_update=parts.kl_previous, controller=kl.controller
    )
    notices = clip_notice(options, updates * minibatches)
    return Method(parts.rollout, parts.reward, advantage, update, notices=notices)
