"""REINFORCE (`rlmt-grape` §4.1-4.3, eq. 3-4): −(R − b) log π at every token.

The baseline b is nothing (the reward-weighted loss), a constant, the running mean of the rewards of earlier steps, the
mean of the other samples' rewards (RLOO), or a critic's V(sₜ) before each token. None of them has seen the token it is
the baseline of: the expected gradient is the same with all of them. `aggregation: sum_over_samples` is eq. 3's
(1/S) Σ Σ.
"""

from functools import partial

from vigneron.batch import Batch
from vigneron.config import ReinforceConfig
from vigneron.core.advantages import leave_one_out
from vigneron.core.losses import policy_gradient
from vigneron.methods.running_mean import RunningMean
from vigneron.methods.terms import entropy_bonus, policy_metrics, with_advantages
from vigneron.methods.token_critic import token_critic, value_term, with_returns
from vigneron.policy.logprobs import Scores, values_before
from vigneron.training.kl_penalty import KlPenalty
from vigneron.training.method import Method
from vigneron.training.parts import Parts
from vigneron.training.update import Term


def build(parts: Parts, options: ReinforceConfig) -> Method:
    critic = token_critic(parts.policy, options.critic) if options.has_critic else None
    running = RunningMean(options.decay) if options.baseline == "running_mean" else None
    kl = KlPenalty(parts, options.kl, penalised=options.kl.coefficient > 0)
    critic_pass = [partial(values_before, parts.policy, critic=critic)] if critic is not None else []

    def advantage(batch: Batch) -> Batch:
        """A = R − b   (eq. 4 where b is the critic's)."""
        batch = batch.with_signals(**parts.precompute(batch, *kl.passes, *critic_pass))
        rewards_B = batch.signals.rewards_B
        returns_BT = rewards_B[:, None].expand(batch.samples.completion_BT.shape)
        if critic is not None:
            return with_returns(batch.with_signals(advantages_BT=returns_BT - batch.signals.values_BT), returns_BT)
        if options.baseline == "leave_one_out":
            return with_advantages(batch, leave_one_out(rewards_B, batch.samples.group_B))
        baseline = running.before(rewards_B) if running else options.constant or 0.0
        return batch.with_signals(advantages_BT=returns_BT - baseline).with_metrics({"baseline": baseline})

    def score(batch: Batch) -> Scores:
        return parts.score(batch, critic=critic, exact_kl=kl.exact)

    def loss(batch: Batch, now: Scores) -> list[Term]:
        """L = −(R − b) log π   (eq. 3), with the regularisers that the recipe asks for."""
        surrogate_BT = policy_gradient(now.logprobs_BT, batch.signals.advantages_BT)
        return [
            Term("loss/policy", surrogate_BT, 1.0, options.aggregation),
            *entropy_bonus(now, options.entropy_coefficient, options.aggregation),
            *policy_metrics(batch, now),
            *kl.terms(batch, now, options.aggregation),
            *([value_term(options.critic, batch, now)] if critic is not None else []),
        ]

    update = parts.gradient_update(score, loss, critic=critic, after_update=parts.kl_previous, controller=running)
    return Method(parts.rollout, parts.reward, advantage, update)
