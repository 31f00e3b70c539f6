"""TRPO (`rlmt-grape` §4.5, eq. 7-10): the importance ratio π₁/π₀ with a critic's advantages, and π₁ kept near π₀.

`form: penalty` is eq. 9: β · KL(π₀ ‖ π₁), exact over the vocabulary, in several updates a step; with an adaptive β it
is the PPO paper's alternative to clipping. `form: constraint` is eq. 10: one step with KL(π₀ ‖ π₁) ≤ δ.
"""

from dataclasses import replace
from functools import partial

import torch

from vigneron.batch import Batch, map_parts
from vigneron.config import TrpoConfig
from vigneron.core.losses import importance_ratio
from vigneron.methods.shared import idle_notice, kl_figure, mismatch_figure
from vigneron.methods.token_critic import seen_before, token_critic, value_term, with_returns
from vigneron.policy.fisher import fisher_product
from vigneron.policy.logprobs import ExactKl, Scores, reference_view, score
from vigneron.policy.model import Reference
from vigneron.rollout.on_policy import OnPolicy, sampling_of
from vigneron.training.kl_controller import KlController
from vigneron.training.method import Method, Parts, Update
from vigneron.training.trust_region import TrustRegionUpdate
from vigneron.training.update import GradientUpdate, Term, players_of


def build(parts: Parts) -> Method:
    config, policy, reference = parts.config, parts.policy, parts.reference
    options = config.method
    assert isinstance(options, TrpoConfig)
    sampling = sampling_of(config)
    critic = token_critic(policy, options.critic)
    previous = Reference(policy.frozen_copy(), shares_weights=False)
    from_previous = ExactKl(previous, "previous_hidden_BTH", from_other=True)
    controller = KlController.of(options.penalty)

    def advantage(batch: Batch) -> Batch:
        """Aₜ = R − V(sₜ)   (eq. 4), and π₀'s states, for the KL from it."""
        previous.follow(policy)
        seen = seen_before(config, policy, reference, critic, sampling, batch)
        seen |= map_parts(
            batch,
            config.tokens_at_once,
            lambda part: reference_view(previous, part, sampling, keep_hidden=True, name="previous"),
        )
        del seen["untruncated_BT"]
        returns_BT = batch.rewards_B[:, None].expand(batch.completion_BT.shape)
        return with_returns(replace(batch, **seen, advantages_BT=returns_BT - seen["values_BT"]), returns_BT)

    def score_now(batch: Batch) -> Scores:
        return score(policy, batch, sampling, critic=critic, exact_kl=from_previous)

    def surrogate(batch: Batch, now: Scores) -> Term:
        """−r · A   (eq. 7)."""
        ratio = importance_ratio(now.logprobs_BT, batch.behaviour_BT, batch.advantages_BT)
        return Term("loss/policy", ratio, 1.0, options.aggregation)

    def loss(batch: Batch, now: Scores) -> list[Term]:
        """L = −r · A + β KL(π₀ ‖ π₁)   (eq. 9), and the critic's."""
        return [
            surrogate(batch, now),
            Term("loss/kl", now.exact_kl_BT, controller.coefficient, options.aggregation),
            value_term(options.critic, batch, now),
            *figures(batch, now),
        ]

    def figures(batch: Batch, now: Scores) -> list[Term]:
        entropy = Term("entropy", now.entropy_BT.detach(), of_sampler=True)
        return [entropy, kl_figure(batch, now), mismatch_figure(batch, now)]

    @torch.no_grad()
    def moved(batch: Batch) -> Term:
        return Term("kl_previous", score_now(batch).exact_kl_BT)

    def value_loss(batch: Batch, now: Scores) -> list[Term]:
        return [value_term(options.critic, batch, now)]

    players = players_of(config.optimizer, policy.trainable(), critic.parameters())
    update: Update
    if options.form == "penalty":
        updates = options.updates_per_step
        update = GradientUpdate.of(config, updates, score_now, loss, players, moved, controller)
    else:
        critic_alone = GradientUpdate.of(config, 1, score_now, value_loss, players[1:])
        product = partial(fisher_product, policy, sampling=sampling, tokens_at_once=config.tokens_at_once)
        actor = partial(score, policy, sampling=sampling, exact_kl=from_previous)
        update = TrustRegionUpdate(policy, options.constraint, actor, surrogate, figures, product, critic_alone)
    idle = idle_notice(options.updates_per_step, ["penalty"]) if options.form == "penalty" else ()
    rollout = OnPolicy.of(config, policy, sampling)
    return Method(rollout, parts.reward, advantage, update, critic=critic, notices=idle)
