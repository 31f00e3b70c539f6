"""Another reward for a method that is built already."""

from dataclasses import replace

from vigneron.rewards.apply import ApplyReward
from vigneron.rollout.build import Rollout
from vigneron.training.collect import DynamicSampling, OverlappedRollout, RewardedRollout
from vigneron.training.method import Method


def with_reward(method: Method, reward: ApplyReward) -> Method:
    """In the reward slot, or inside of the rollout that took it over."""
    inside = _replaced(method.rollout, reward)
    return replace(method, rollout=inside) if inside is not method.rollout else replace(method, reward=reward)


def _replaced(rollout: Rollout, reward: ApplyReward) -> Rollout:
    if isinstance(rollout, DynamicSampling):
        return replace(rollout, rollout=_replaced(rollout.rollout, reward))
    if isinstance(rollout, OverlappedRollout | RewardedRollout):
        return replace(rollout, reward=reward)
    return rollout
