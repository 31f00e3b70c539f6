"""The held-out part: greedy completions, rewarded."""

from collections.abc import Callable, Sequence

from vigneron.batch import Batch
from vigneron.config import Config
from vigneron.data.prompts import Row
from vigneron.policy.model import Policy
from vigneron.rewards.checkers import Check
from vigneron.rollout.on_policy import OnPolicy
from vigneron.training.method import Metrics
from vigneron.training.metrics import batch_metrics


def evaluate(
    config: Config, policy: Policy, reward: Callable[[Batch], Batch], check: Check, rows: Sequence[Row]
) -> tuple[Batch, Metrics]:
    batch = check(reward(OnPolicy.greedy(config, policy)(rows)))
    return batch, batch_metrics(batch)
