"""What REINFORCE, PPO and TRPO share: a critic that reads before every token (eq. 4), its loss, its figures."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vigneron.batch import Batch, map_parts
from vigneron.config import Config, TokenCriticConfig
from vigneron.core.advantages import explained_variance
from vigneron.core.draws import Sampling
from vigneron.core.losses import clipped_squared_error, squared_error
from vigneron.policy.logprobs import Critic, Scores, reference_view, score
from vigneron.policy.model import Policy, Reference
from vigneron.training.update import Term


def token_critic(policy: Policy, options: TokenCriticConfig) -> Critic:
    return Critic.of(policy, "every_token", own_network=options.network == "own")


def seen_before(
    config: Config, policy: Policy, reference: Reference, critic: Critic, sampling: Sampling, batch: Batch
) -> dict[str, Any]:
    """Before the step's updates: the reference's log-probs, the policy's own (`untruncated_BT`) and the values."""

    @torch.no_grad()
    def look(part: Batch) -> dict[str, Tensor]:
        now = score(policy, part, sampling, critic=critic)
        seen = reference_view(reference, part, sampling, keep_hidden=False)
        return {**seen, "untruncated_BT": now.untruncated_BT, "values_BT": now.values_BT}

    return map_parts(batch, config.tokens_at_once, look)


def with_returns(batch: Batch, returns_BT: Tensor) -> Batch:
    """The critic's targets, and how well it knew them."""
    known = explained_variance(batch.values_BT, returns_BT, batch.trained_BT)
    return replace(batch, returns_BT=returns_BT, figures={**batch.figures, "critic/explained_variance": known})


def value_term(options: TokenCriticConfig, batch: Batch, now: Scores) -> Term:
    """λ_v (Vₜ − Rₜ)² at every token, clipped or not."""
    if options.clip is None:
        return Term("loss/value", squared_error(now.values_BT, batch.returns_BT), options.coefficient)
    values = (now.values_BT, batch.values_BT, batch.returns_BT)
    return Term("loss/value", clipped_squared_error(*values, epsilon=options.clip), options.coefficient)
