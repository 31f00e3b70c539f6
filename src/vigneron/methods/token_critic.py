"""What REINFORCE, PPO, TRPO and OREO share: a critic that reads before every token (eq. 4), its loss, its metric."""

from torch import Tensor

from vigneron.batch import Batch
from vigneron.config import TokenCriticConfig
from vigneron.config.critics import TokenValueConfig
from vigneron.core.advantages import explained_variance
from vigneron.core.losses import clipped_squared_error, squared_error
from vigneron.policy.logprobs import Critic, Scores
from vigneron.policy.model import Policy
from vigneron.training.update import Term


def token_critic(policy: Policy, options: TokenValueConfig) -> Critic:
    return Critic.of(policy, "every_token", own_network=options.network == "own")


def with_returns(batch: Batch, returns_BT: Tensor) -> Batch:
    """The critic's targets, and how much of their variance it explained."""
    explained = explained_variance(batch.signals.values_BT, returns_BT, batch.trained_BT)
    return batch.with_signals(returns_BT=returns_BT).with_metrics({"critic/explained_variance": explained})


def value_term(options: TokenCriticConfig, batch: Batch, now: Scores) -> Term:
    """λ_v (Vₜ − Rₜ)² at every token, clipped or not."""
    before_BT, returns_BT = batch.signals.values_BT, batch.signals.returns_BT
    if options.clip is None:
        return Term("loss/value", squared_error(now.values_BT, returns_BT), options.coefficient)
    errors_BT = clipped_squared_error(now.values_BT, before_BT, returns_BT, epsilon=options.clip)
    return Term("loss/value", errors_BT, options.coefficient)
