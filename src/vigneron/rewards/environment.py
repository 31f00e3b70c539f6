"""The environment's own reward: what it gave for the turns of a conversation."""

from collections.abc import Callable, Sequence
from typing import Any

from vigneron.rollout.conversations import TURN_REWARDS


def environment_reward(
    environment_reward: Sequence[float | None],
    environment_rewards: Sequence[Sequence[float]],
    log_extra: Callable[[str, Any], None],
    **others: Any,
) -> list[float | None]:
    """The sum over turns; missing where the environment failed."""
    log_extra(TURN_REWARDS, environment_rewards)
    return list(environment_reward)
