"""Selecting samples by their rewards: the best of a group, or its best and its worst. A missing reward is NaN."""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def best_of_group(
    rewards_B: Float[Tensor, " B"], group_B: Int[Tensor, " B"], *, keep: int = 1, min_reward: float | None = None
) -> Bool[Tensor, " B"]:
    """1 on the `keep` samples of each group that earn most   (§3, steps 3-4); of equals the first.

    A missing reward (NaN) is never kept, nor one below `min_reward`.
    """
    least = -math.inf if min_reward is None else min_reward
    kept_B = torch.zeros(len(rewards_B), dtype=torch.bool)
    for samples in ranked_groups(rewards_B, group_B):
        for sample, reward in samples[:keep]:
            kept_B[sample] = reward >= least
    return kept_B.to(rewards_B.device)


def best_and_worst(rewards_B: Float[Tensor, " B"], group_B: Int[Tensor, " B"]) -> list[tuple[int, int]]:
    """The samples of each group that earn most and least; a group whose rewards do not differ has no such pair."""
    ranked = [samples for samples in ranked_groups(rewards_B, group_B) if len(samples) > 1]
    return [(best, worst) for (best, most), *_, (worst, least) in ranked if most > least]


def ranked_groups(rewards_B: Float[Tensor, " B"], group_B: Int[Tensor, " B"]) -> list[list[tuple[int, float]]]:
    """For each group its samples with their rewards, highest first and equals in order; missing ones are left out."""
    groups: dict[int, list[tuple[int, float]]] = {}
    for sample, (reward, group) in enumerate(zip(rewards_B.tolist(), group_B.tolist(), strict=True)):
        groups.setdefault(group, []).extend([(sample, reward)] if reward == reward else [])
    return [sorted(samples, key=lambda pair: -pair[1]) for samples in groups.values()]
