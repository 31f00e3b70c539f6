"""Select samples by reward: the best of a group, or its best and its worst. A missing reward is NaN."""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def best_of_group(
    rewards_B: Float[Tensor, " B"], group_B: Int[Tensor, " B"], *, keep: int = 1, min_reward: float | None = None
) -> Bool[Tensor, " B"]:
    """1 on the `keep` samples of each group with the highest rewards   (§3, steps 3-4); ties go to the first.

    A missing reward (NaN), or one below `min_reward`, is never kept.
    """
    least = -math.inf if min_reward is None else min_reward
    kept_B = torch.zeros(len(rewards_B), dtype=torch.bool)
    for samples in ranked_groups(rewards_B, group_B):
        for sample, reward in samples[:keep]:
            kept_B[sample] = reward >= least
    return kept_B.to(rewards_B.device)


def best_and_worst(rewards_B: Float[Tensor, " B"], group_B: Int[Tensor, " B"]) -> list[tuple[int, int]]:
    """The samples of each group with the highest and lowest reward; none for a group whose rewards are all equal."""
    ranked = [samples for samples in ranked_groups(rewards_B, group_B) if len(samples) > 1]
    return [(best, worst) for (best, most), *_, (worst, least) in ranked if most > least]


def ranked_groups(rewards_B: Float[Tensor, " B"], group_B: Int[Tensor, " B"]) -> list[list[tuple[int, float]]]:
    """The samples of each group with their rewards, highest first, ties in order; missing rewards are left out."""
    groups: dict[int, list[tuple[int, float]]] = {}
    for sample, (reward, group) in enumerate(zip(rewards_B.tolist(), group_B.tolist(), strict=True)):
        groups.setdefault(group, []).extend([(sample, reward)] if reward == reward else [])
    return [sorted(samples, key=lambda pair: -pair[1]) for samples in groups.values()]
