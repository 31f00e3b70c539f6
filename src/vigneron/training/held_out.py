"""The held-out part: greedy completions, rewarded."""

from collections.abc import Callable, Sequence

from vigneron.batch import Batch
from vigneron.config import Config
from vigneron.policy.model import Policy
from vigneron.rewards.checkers import Checker, checked
from vigneron.rollout.on_policy import OnPolicy
from vigneron.rollout.prompts import Row
from vigneron.training.metrics import batch_metrics
from vigneron.training.slots import Metrics


def evaluate(
    config: Config, policy: Policy, reward: Callable[[Batch], Batch], checker: Checker, rows: Sequence[Row]
) -> tuple[Batch, Metrics]:
    batch = checked(reward(OnPolicy.greedy(config, policy)(rows)), checker)
    return batch, batch_metrics(batch)
