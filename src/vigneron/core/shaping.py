"""Shaping of rewards."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vigneron.core.advantages import group_sizes, without_variance


def soft_overlong(length_B: Int[Tensor, " B"], *, limit: int, buffer: int) -> Float[Tensor, " B"]:
    """From 0 to −1 over the last `buffer` tokens before the length limit   (DAPO, Yu et al. 2025, eq. 13)."""
    return -((length_B - (limit - buffer)) / buffer).clamp(0.0, 1.0)


def annealed(
    check_B: Float[Tensor, " B"], dense_B: Float[Tensor, " B"], was_hit_B: Bool[Tensor, " B"]
) -> Float[Tensor, " B"]:
    """R = check where the sample's prompt has been hit, this step included, else dense. A NaN that is not used does not
    matter."""
    return torch.where(was_hit_B, check_B, dense_B)


def tie_break(
    check_B: Float[Tensor, " B"], dense_B: Float[Tensor, " B"], group_B: Int[Tensor, " B"]
) -> Float[Tensor, " B"]:
    """R = check + ¼ · gap · dense / max(1, max |dense| in the group) inside groups of two or more samples whose checked
    rewards are all equal, else R = check.

    gap is the smallest difference between two checked rewards of the step, and at most 1. The second term is at most
    gap/4 in size, so check_i < check_j implies R_i < R_j for any two samples. NaN (missing) stays NaN: of the check
    everywhere, of the dense reward where it is used.
    """
    distinct = check_B[~check_B.isnan()].unique()  # sorted
    gap = min([1.0, *distinct.diff().tolist()])
    groups, number_B = group_B.unique(return_inverse=True)
    largest_G = dense_B.new_ones(len(groups)).scatter_reduce(0, number_B, dense_B.abs().nan_to_num(), "amax")
    bonus_B = 0.25 * gap * dense_B / largest_G[number_B]
    tied_B = without_variance(check_B, group_B) & (group_sizes(check_B, group_B) > 1)
    return torch.where(tied_B, check_B + bonus_B, check_B)
