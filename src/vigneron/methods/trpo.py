"""TRPO (`rlmt-grape` §4.5, eq. 7-10): the importance ratio π₁/π₀ with a critic's advantages, and π₁ kept near π₀.

`form: penalty` is eq. 9: β · KL(π₀ ‖ π₁), exact over the vocabulary, in several updates a step; with an adaptive β it
is the PPO paper's alternative to clipping. `form: constraint` is eq. 10: one step with KL(π₀ ‖ π₁) ≤ δ.
"""

from functools import partial

import torch

from vigneron.batch import Batch
from vigneron.config import TrpoConfig
from vigneron.core.losses import importance_ratio
from vigneron.methods.terms import one_update_notice, policy_metrics
from vigneron.methods.token_critic import token_critic, value_term, with_returns
from vigneron.policy.fisher import fisher_product
from vigneron.policy.logprobs import ExactKl, Scores, reference_view, values_before
from vigneron.policy.reference import Reference
from vigneron.training.kl_penalty import KlPenalty
from vigneron.training.method import Method, Update
from vigneron.training.parts import Parts
from vigneron.training.trust_region import TrustRegionUpdate
from vigneron.training.update import Term


def build(parts: Parts, options: TrpoConfig) -> Method:
    policy, sampling = parts.policy, parts.sampling
    critic = token_critic(policy, options.critic)
    kl = KlPenalty(parts, options.penalty)  # the metric; eq. 9's penalty is the KL from the previous policy
    previous = Reference(policy.frozen_copy(), shares_weights=False)
    from_previous = ExactKl(previous, "previous_hidden_BTH", beta=0.0)
    previous_pass = partial(reference_view, previous, sampling=sampling, keep_hidden=True, name="previous")

    def advantage(batch: Batch) -> Batch:
        """Aₜ = R − V(sₜ)   (eq. 4), and π₀'s states, for the KL from it."""
        previous.follow(policy)
        critic_pass = partial(values_before, policy, critic=critic)
        batch = batch.with_signals(**parts.precompute(batch, critic_pass, *kl.passes, previous_pass))
        returns_BT = batch.signals.rewards_B[:, None].expand(batch.samples.completion_BT.shape)
        return with_returns(batch.with_signals(advantages_BT=returns_BT - batch.signals.values_BT), returns_BT)

    def score(batch: Batch) -> Scores:
        return parts.score(batch, critic=critic, exact_kl=from_previous)

    def surrogate(batch: Batch, now: Scores) -> Term:
        """−r · A   (eq. 7)."""
        ratio_BT = importance_ratio(now.logprobs_BT, batch.samples.behaviour_BT, batch.signals.advantages_BT)
        return Term("loss/policy", ratio_BT, 1.0, options.aggregation)

    def loss(batch: Batch, now: Scores) -> list[Term]:
        """L = −r · A + β KL(π₀ ‖ π₁)   (eq. 9), and the critic's."""
        return [
            surrogate(batch, now),
            Term("loss/kl", now.exact_kl_BT, kl.coefficient, options.aggregation),
            value_term(options.critic, batch, now),
            *metrics(batch, now),
        ]

    def metrics(batch: Batch, now: Scores) -> list[Term]:
        return [*policy_metrics(batch, now), *kl.terms(batch, now)]

    @torch.no_grad()
    def kl_previous(batch: Batch) -> Term:
        return Term("kl_previous", score(batch).exact_kl_BT)

    def value_loss(batch: Batch, now: Scores) -> list[Term]:
        return [value_term(options.critic, batch, now)]

    update: Update
    notices: tuple[str, ...] = ()
    if options.form == "penalty":
        updates = options.updates_per_step
        update = parts.gradient_update(
            score, loss, critic=critic, updates_per_step=updates, after_update=kl_previous, controller=kl.controller
        )
        notices = one_update_notice(updates, ["penalty"])
    else:
        critic_update = parts.gradient_update(score, value_loss, optimizers=parts.optimizers(critic)[1:])
        product = partial(
            fisher_product, policy, sampling=sampling, microbatch_tokens=parts.config.resolved_microbatch_tokens
        )
        actor = partial(parts.score, exact_kl=from_previous)
        update = TrustRegionUpdate(policy, options.constraint, actor, surrogate, metrics, product, critic_update)
    return Method(parts.rollout, parts.reward, advantage, update, notices=notices)
