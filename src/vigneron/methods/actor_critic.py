"""PGSRM's Algorithm 1: policy gradient − entropy + KL on the actor, a value head with its own optimizer.

`faithful` is the paper's appendix A.4 to the letter. The default differs in two places: the KL has a gradient
(exact, over the vocabulary), and the baseline V(s) is read before the answer, as §3.3 writes it; read after the
answer's last token it has seen the action, and shrinks the gradient as it learns. With `clip_epsilon` and several
updates a step it is §3.3's clipped objective. Masks come from lengths in all of them.
"""

from functools import partial

from vigneron.batch import Batch
from vigneron.config import ActorCriticConfig
from vigneron.core.losses import policy_gradient, squared_error
from vigneron.methods.terms import clip_notice, clipped_terms, policy_metrics, with_advantages
from vigneron.policy.logprobs import Critic, Scores, values_before
from vigneron.training.kl_penalty import KlPenalty
from vigneron.training.method import Method
from vigneron.training.parts import Parts
from vigneron.training.update import Term


def build(parts: Parts, options: ActorCriticConfig) -> Method:
    random_seed = parts.config.seed if options.value_start == "random" else None
    critic = Critic.of(parts.policy, options.value_position, random_seed=random_seed)
    kl = KlPenalty(parts, options.kl, penalised=options.kl.coefficient > 0)

    def advantage(batch: Batch) -> Batch:
        """A = R − V   (Algorithm 1, lines 4 and 7-10)."""
        before = parts.precompute(batch, *kl.passes, partial(values_before, parts.policy, critic=critic))
        return with_advantages(batch, batch.signals.rewards_B - before["values_B"], **before)

    def score(batch: Batch) -> Scores:
        return parts.score(batch, critic=critic, exact_kl=kl.exact)

    def loss(batch: Batch, now: Scores) -> list[Term]:
        """L = −(log π · A) − β_ent H + λ_KL D_KL, and λ_v (v − r)²   (Algorithm 1, lines 11-17)."""
        _, mismatch = policy_metrics(batch, now)
        errors_B = squared_error(now.values_B, batch.signals.rewards_B)
        return [
            *surrogate(batch, now),
            Term("entropy", now.entropy_BT, -options.entropy_coefficient, first_update_only=True),
            *kl.terms(batch, now),
            Term("loss/value", errors_B, options.value_coefficient, "samples"),
            mismatch,
        ]

    def surrogate(batch: Batch, now: Scores) -> list[Term]:
        if options.clip_epsilon is None:
            return [Term("loss/policy", policy_gradient(now.logprobs_BT, batch.signals.advantages_BT), 1.0)]
        return clipped_terms(batch, now, options.clip_epsilon)

    update = parts.gradient_update(
        score,
        loss,
        critic=critic,
        updates_per_step=options.updates_per_step,
        after_update=parts.kl_previous,
        controller=kl.controller,
    )
    notices = clip_notice(options, options.updates_per_step, options.kl)
    return Method(parts.rollout, parts.reward, advantage, update, notices=notices)
