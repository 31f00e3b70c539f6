"""Eq. 15 of `rlmt-grape`: the reward from the scores and confidences of a rubric's items.

    R(textᵢ) = ρ Σⱼ ωⱼ τᵢⱼ φ̄ⱼ / Σⱼ φ̄ⱼ        φ̄ⱼ: the mean confidence of item j over the category's samples

An item that failed for one sample of a group is dropped for the whole group: renormalising one sample alone would
compare it with the others on another scale.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


class CategoryRewards(NamedTuple):
    rewards_B: Float[Tensor, " B"]
    contributions_BJ: Float[Tensor, "B J"]
    """What each item adds to the reward; 0 for a dropped item."""
    confidence_J: Float[Tensor, " J"]
    """φ̄; NaN for an item without any score."""


def grape_reward(
    scores_BJ: Float[Tensor, "B J"],
    confidences_BJ: Float[Tensor, "B J"],
    weights_J: Float[Tensor, " J"],
    group_B: Int[Tensor, " B"] | None = None,
    *,
    normalise: bool = False,
) -> Float[Tensor, " B"]:
    """Eq. 15 for the samples of one category in one step; NaN is missing.

    φ̄ is the mean of the confidences present. An item missing for any sample of a group (without `group`, for any
    sample) is dropped for that group: eq. 15 is over the items kept, with weights renormalised and ρ their number. No
    item kept gives NaN, and so does Σ φ̄ = 0. `normalise` divides by Σ ω φ̄ instead of Σ φ̄ / ρ, so that a perfect
    answer earns 1 for any confidences.
    """
    return grape_rewards(scores_BJ, confidences_BJ, weights_J, group_B, normalise=normalise).rewards_B


def grape_rewards(
    scores_BJ: Float[Tensor, "B J"],
    confidences_BJ: Float[Tensor, "B J"],
    weights_J: Float[Tensor, " J"],
    group_B: Int[Tensor, " B"] | None = None,
    *,
    normalise: bool = False,
) -> CategoryRewards:
    """As `grape_reward`, with the items' contributions and confidences."""
    present_BJ = ~(scores_BJ.isnan() | confidences_BJ.isnan())
    confidence_J = confidences_BJ.nanmean(0)
    kept_BJ = kept_items(present_BJ, group_B)
    weights_BJ = torch.where(kept_BJ, weights_J, 0.0)
    weights_BJ = weights_BJ / weights_BJ.sum(1, keepdim=True)
    confidence_BJ = torch.where(kept_BJ, confidence_J, 0.0)
    shares_BJ = weights_BJ if normalise else kept_BJ.to(scores_BJ.dtype) / kept_BJ.sum(1, keepdim=True)
    whole_B1 = (shares_BJ * confidence_BJ).sum(1, keepdim=True)
    known_B1 = whole_B1 > 0
    parts_BJ = weights_BJ * torch.where(kept_BJ, scores_BJ, 0.0) * confidence_BJ / torch.where(known_B1, whole_B1, 1.0)
    contributions_BJ = torch.where(kept_BJ & known_B1, parts_BJ, 0.0)
    rewards_B = torch.where(known_B1[:, 0], contributions_BJ.sum(1), torch.nan)
    return CategoryRewards(rewards_B, contributions_BJ, confidence_J)


def kept_items(present_BJ: Bool[Tensor, "B J"], group_B: Int[Tensor, " B"] | None = None) -> Bool[Tensor, "B J"]:
    """The items that every sample of a sample's group has a score for."""
    if group_B is None:
        return present_BJ.all(0).expand_as(present_BJ)
    _, group_B = group_B.unique(return_inverse=True)
    missing_GJ = torch.zeros_like(present_BJ, dtype=torch.long).index_add(0, group_B, (~present_BJ).long())
    return missing_GJ[group_B] == 0


def explained_shares(contributions_BJ: Float[Tensor, "B J"], group_B: Int[Tensor, " B"]) -> Float[Tensor, " J"]:
    """Each item's share of the advantages' variance; the shares sum to 1. NaN if all rewards of a group are equal.

    With cⱼ an item's contribution and A = Σ cⱼ the advantage, both minus their group's mean: Σ cⱼ A / Σ A². An item
    that opposes the others has a negative share.
    """
    _, group_B = group_B.unique(return_inverse=True)
    count_G = torch.bincount(group_B)
    sums_GJ = torch.zeros_like(contributions_BJ).index_add(0, group_B, contributions_BJ)[: len(count_G)]
    centred_BJ = contributions_BJ - (sums_GJ / count_G[:, None])[group_B]
    advantage_B = centred_BJ.sum(1)
    variance = (advantage_B**2).sum()
    return (centred_BJ * advantage_B[:, None]).sum(0) / torch.where(variance > 1e-12, variance, torch.nan)
