"""Shaping of rewards."""

from jaxtyping import Float, Int
from torch import Tensor


def soft_overlong(length_B: Int[Tensor, " B"], *, limit: int, buffer: int) -> Float[Tensor, " B"]:
    """From 0 to −1 over the last `buffer` tokens before the length limit   (DAPO, Yu et al. 2025, eq. 13)."""
    return -((length_B - (limit - buffer)) / buffer).clamp(0.0, 1.0)
