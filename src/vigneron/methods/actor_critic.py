"""PGSRM's Algorithm 1: policy gradient − entropy + KL on the actor, a value head with its own optimizer.

`faithful` is the paper's appendix A.4 to the letter. The default differs in two places: the KL has a gradient
(exact, over the vocabulary), and the baseline V(s) is read before the answer, as §3.3 writes it; read after the
answer's last token it has seen the action, and shrinks the gradient as it learns. With `clip_epsilon` and several
updates a step it is §3.3's clipped objective. Masks come from lengths in all of them.
"""

from dataclasses import replace

import torch
from torch import Tensor

from vigneron.batch import Batch, map_parts
from vigneron.config import ActorCriticConfig
from vigneron.core.losses import policy_gradient, squared_error
from vigneron.methods.shared import (
    clipped_terms,
    comparing,
    idle_notice,
    kl_figure,
    kl_penalty,
    mismatch_figure,
    movement,
)
from vigneron.policy.logprobs import Critic, ExactKl, Scores, reference_view, score, values_before
from vigneron.rollout.on_policy import OnPolicy, sampling_of
from vigneron.training.kl_controller import KlController
from vigneron.training.method import Method, Parts
from vigneron.training.update import GradientUpdate, Term, players_of


def build(parts: Parts) -> Method:
    config, policy, reference = parts.config, parts.policy, parts.reference
    options = config.method
    assert isinstance(options, ActorCriticConfig)
    sampling = sampling_of(config)
    critic = Critic.of(policy, options.value_position)
    controller = KlController.of(options.kl)
    exact = options.kl.estimator == "exact"

    def advantage(batch: Batch) -> Batch:
        """A = R − V   (Algorithm 1, lines 4 and 7-10)."""
        seen = map_parts(batch, config.tokens_at_once, look)
        advantages_B1 = (batch.rewards_B - seen["values_B"])[:, None]
        return replace(batch, **seen, advantages_BT=advantages_B1.expand(batch.completion_BT.shape))

    @torch.no_grad()
    def look(part: Batch) -> dict[str, Tensor]:
        seen = reference_view(reference, part, sampling, keep_hidden=exact)
        return {**seen, **values_before(policy, part, critic)}

    def score_now(batch: Batch) -> Scores:
        return score(policy, batch, sampling, critic=critic, exact_kl=ExactKl(reference) if exact else None)

    def loss(batch: Batch, now: Scores) -> list[Term]:
        """L = −(log π · A) − β_ent H + λ_KL D_KL, and λ_v (v − r)²   (Algorithm 1, lines 11-17)."""
        return [
            *surrogate(batch, now),
            Term("entropy", now.entropy_BT, -options.entropy_coefficient, of_sampler=True),
            Term("loss/kl", kl_penalty(options.kl, batch, now), controller.coefficient),
            Term("loss/value", squared_error(now.values_B, batch.rewards_B), options.value_coefficient, "samples"),
            kl_figure(batch, now),
            mismatch_figure(batch, now),
        ]

    def surrogate(batch: Batch, now: Scores) -> list[Term]:
        if options.clip_epsilon is None:
            return [Term("loss/policy", policy_gradient(now.logprobs_BT, batch.advantages_BT), 1.0)]
        return clipped_terms(batch, now, options.clip_epsilon)

    moved = movement(policy, sampling)
    players = players_of(config.optimizer, policy.trainable(), critic.parameters())
    return Method(
        rollout=OnPolicy.of(config, policy, sampling),
        reward=parts.reward,
        advantage=advantage,
        update=GradientUpdate.of(config, options.updates_per_step, score_now, loss, players, moved, controller),
        critic=critic,
        notices=idle_notice(options.updates_per_step, comparing(options.clip_epsilon, options.kl)),
    )
