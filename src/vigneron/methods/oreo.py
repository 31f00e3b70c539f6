"""OREO (Wang et al. 2024; `rlmt-grape` §5): policy and value together, on recorded samples with rewards from 0 to 1.

With ρₜ = log π/π_ref, the soft Bellman equation makes V before token t equal to R − β Σ_{i≥t} ρᵢ: the value learns
that, and the policy moves each ρₜ towards it. The value then guides best-of-N and beam search (`vigneron eval
--best-of`).
"""

from functools import partial

from vigneron.batch import Batch
from vigneron.config.offline import OreoConfig
from vigneron.core.losses import oreo
from vigneron.methods.recorded import recorded_rewards, text_entropy
from vigneron.methods.token_critic import token_critic, with_returns
from vigneron.policy.logprobs import Scores, values_before
from vigneron.training.kl_penalty import KlPenalty
from vigneron.training.method import Method
from vigneron.training.parts import Parts
from vigneron.training.update import Term


def build(parts: Parts, options: OreoConfig) -> Method:
    critic = token_critic(parts.policy, options.critic)
    kl = KlPenalty(parts, options.kl, penalised=options.kl.coefficient > 0, exact_metric=True)

    def advantage(batch: Batch) -> Batch:
        """No advantage: the reference's log-probs, and how much of the reward the value explains."""
        before = parts.precompute(batch, *kl.passes, partial(values_before, parts.policy, critic=critic))
        rewards_BT = batch.signals.rewards_B[:, None].expand(batch.samples.completion_BT.shape)
        return with_returns(batch.with_signals(**before), rewards_BT)

    def score(batch: Batch) -> Scores:
        return parts.score(batch, critic=critic, exact_kl=kl.exact)

    def loss(batch: Batch, now: Scores) -> list[Term]:
        """(V + β [ρₜ + Σ_{i>t} ρᵢ] − R)² for the policy, (V + β Σ_{i≥t} ρᵢ − R)² for the value, and the KL."""
        policy_BT, value_BT = oreo(
            now.untruncated_BT,
            batch.signals.reference_BT,
            now.values_BT,
            batch.signals.rewards_B,
            batch.samples.mask_BT,
            beta=options.beta,
        )
        return [
            Term("loss/oreo", policy_BT, 1.0),
            Term("loss/value", value_BT, options.critic.coefficient),
            text_entropy(now),
            *kl.terms(batch, now),
        ]

    update = parts.gradient_update(score, loss, critic=critic)
    reward = partial(recorded_rewards, column=options.reward_column)
    return Method(parts.rollout, reward, advantage, update, critic=critic)
