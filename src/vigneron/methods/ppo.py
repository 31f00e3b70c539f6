"""PPO (`rlmt-grape` §4.6-4.7, eq. 11-12): the clipped ratio against the policy that sampled, a critic before every
token, and the KL to the run's start in the reward.

`advantage: eq_12` is the paper's A' = R − β (log π₀ − log reference) − V at each token. `gae`, as practised, has these
as rewards a token, with R on the last, and sums what follows: with γ = λ = 1 a token then also pays for the KL of the
tokens after it. The coefficient may adapt, by the PPO paper's rule or PGSRM's.
"""

from dataclasses import replace

from vigneron.batch import Batch
from vigneron.config import PpoConfig
from vigneron.core import kl
from vigneron.core.advantages import gae, on_last_token
from vigneron.methods.shared import (
    clipped_terms,
    entropy_terms,
    idle_notice,
    kl_figure,
    mismatch_figure,
    movement,
)
from vigneron.methods.token_critic import seen_before, token_critic, value_term, with_returns
from vigneron.policy.logprobs import Scores, score
from vigneron.rollout.on_policy import OnPolicy, sampling_of
from vigneron.training.kl_controller import KlController
from vigneron.training.method import Method, Parts
from vigneron.training.update import GradientUpdate, Term, players_of


def build(parts: Parts) -> Method:
    config, policy, reference = parts.config, parts.policy, parts.reference
    options = config.method
    assert isinstance(options, PpoConfig)
    sampling = sampling_of(config)
    critic = token_critic(policy, options.critic)
    controller = KlController.of(options.kl)

    def advantage(batch: Batch) -> Batch:
        """A from R' = R − β k1   (eq. 12): at each token by itself, or through GAE."""
        seen = seen_before(config, policy, reference, critic, sampling, batch)
        penalty_BT = controller.coefficient * kl.k1(seen.pop("untruncated_BT"), seen["reference_BT"])
        values_BT = seen["values_BT"]
        if options.advantage == "eq_12":
            returns_BT = batch.rewards_B[:, None] - penalty_BT
            advantages_BT = returns_BT - values_BT
        else:
            rewards_BT = on_last_token(batch.rewards_B, batch.mask_BT) - penalty_BT
            advantages_BT, returns_BT = gae(rewards_BT, values_BT, batch.mask_BT, gamma=options.gamma, lam=options.lam)
        return with_returns(replace(batch, **seen, advantages_BT=advantages_BT), returns_BT)

    def score_now(batch: Batch) -> Scores:
        return score(policy, batch, sampling, critic=critic)

    def loss(batch: Batch, now: Scores) -> list[Term]:
        """L = −min(r·A, clip(r)·A)   (eq. 11), and λ_v (V − R)²."""
        return [
            *clipped_terms(batch, now, options.clip_epsilon, options.aggregation),
            value_term(options.critic, batch, now),
            *entropy_terms(now, options.entropy_coefficient, options.aggregation),
            kl_figure(batch, now),
            mismatch_figure(batch, now),
        ]

    return Method(
        rollout=OnPolicy.of(config, policy, sampling),
        reward=parts.reward,
        advantage=advantage,
        update=GradientUpdate.of(
            config,
            options.updates_per_step,
            score_now,
            loss,
            players_of(config.optimizer, policy.trainable(), critic.parameters()),
            movement(policy, sampling),
            controller,
            minibatches=options.minibatches,
        ),
        critic=critic,
        notices=idle_notice(options.updates_per_step * options.minibatches, ["clip_epsilon"]),
    )
