"""REINFORCE (`rlmt-grape` §4.1-4.3, eq. 3-4): −(R − b) log π at every token.

The baseline b is nothing (the reward-weighted loss), a constant, the running mean of the rewards of earlier steps, or a
critic's V(sₜ) before each token. None of them has seen the token it is the baseline of: the gradient's mean is the same
with all of them. `aggregation: sum_over_samples` is eq. 3's (1/S) Σ Σ.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from vigneron.batch import Batch, map_parts
from vigneron.config import ReinforceConfig
from vigneron.core.losses import policy_gradient
from vigneron.methods.shared import entropy_terms, kl_figure, kl_penalty, mismatch_figure, movement
from vigneron.methods.token_critic import token_critic, value_term, with_returns
from vigneron.policy.logprobs import ExactKl, Scores, reference_view, score, values_before
from vigneron.rollout.on_policy import OnPolicy, sampling_of
from vigneron.training.method import Method, Metrics, Parts
from vigneron.training.update import GradientUpdate, Term, players_of


@dataclass
class RunningMean:
    """Of the rewards of earlier steps, the newer ones counting more; 0 before the first. A part of the run's state."""

    decay: float
    total: float = 0.0
    weight: float = 0.0

    @property
    def value(self) -> float:
        return self.total / self.weight if self.weight else 0.0

    def before(self, rewards_B: Tensor) -> float:
        """The mean without these, which are then taken in."""
        used, seen = self.value, float(rewards_B.nanmean())
        if math.isnan(seen):  # all of them are missing
            return used
        self.total = self.decay * self.total + (1 - self.decay) * seen
        self.weight = self.decay * self.weight + (1 - self.decay)
        return used

    def observe(self, metrics: Metrics) -> Metrics:
        """Nothing to add: it has seen the rewards."""
        return {}

    def scalars(self) -> dict[str, Any]:
        return {"total": self.total, "weight": self.weight}

    def load(self, scalars: dict[str, Any]) -> None:
        self.total, self.weight = scalars["total"], scalars["weight"]


def build(parts: Parts) -> Method:
    config, policy, reference = parts.config, parts.policy, parts.reference
    options = config.method
    assert isinstance(options, ReinforceConfig)
    sampling = sampling_of(config)
    critic = token_critic(policy, options.critic) if options.has_critic else None
    running = RunningMean(options.decay) if options.baseline == "running_mean" else None
    exact = options.kl.coefficient > 0 and options.kl.estimator == "exact"

    def advantage(batch: Batch) -> Batch:
        """A = R − b   (eq. 4 where b is the critic's)."""
        batch = replace(batch, **map_parts(batch, config.tokens_at_once, look))
        returns_BT = batch.rewards_B[:, None].expand(batch.completion_BT.shape)
        if critic is not None:
            return with_returns(replace(batch, advantages_BT=returns_BT - batch.values_BT), returns_BT)
        baseline = running.before(batch.rewards_B) if running else options.constant or 0.0
        return replace(batch, advantages_BT=returns_BT - baseline, figures={**batch.figures, "baseline": baseline})

    @torch.no_grad()
    def look(part: Batch) -> dict[str, Tensor]:
        values = values_before(policy, part, critic) if critic is not None else {}
        return {**reference_view(reference, part, sampling, keep_hidden=exact), **values}

    def score_now(batch: Batch) -> Scores:
        return score(policy, batch, sampling, critic=critic, exact_kl=ExactKl(reference) if exact else None)

    def loss(batch: Batch, now: Scores) -> list[Term]:
        """L = −(R − b) log π   (eq. 3), with what regularisers the recipe asks for."""
        surrogate = policy_gradient(now.logprobs_BT, batch.advantages_BT)
        terms = [
            Term("loss/policy", surrogate, 1.0, options.aggregation),
            *entropy_terms(now, options.entropy_coefficient, options.aggregation),
            kl_figure(batch, now),
            mismatch_figure(batch, now),
        ]
        if options.kl.coefficient:
            penalty = kl_penalty(options.kl, batch, now)
            terms.append(Term("loss/kl", penalty, options.kl.coefficient, options.aggregation))
        return terms if critic is None else [*terms, value_term(options.critic, batch, now)]

    players = players_of(config.optimizer, policy.trainable(), critic.parameters() if critic else ())
    update = GradientUpdate.of(config, 1, score_now, loss, players, movement(policy, sampling), running)
    return Method(OnPolicy.of(config, policy, sampling), parts.reward, advantage, update, critic=critic)
