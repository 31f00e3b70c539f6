"""Which rows a curriculum draws: levels as training proceeds (E2H), a growing share (self-paced), weighted orders."""

import math
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Schedule = Literal["classical", "balanced", "cosine", "gaussian"]


def level_probabilities(
    kind: Schedule, progress: float, levels: int, *, sigma: float = 0.5
) -> Float[Tensor, " {levels}"]:
    """The probability of each of K levels, the easiest first, at `progress` = t/T in [0, 1]. With Z = K(K+1)/2:

    classical: one level at a time, min(⌊K t/T⌋, K − 1). balanced: 1/K. cosine: [α(K − k) + (1 − α)(k + 1)]/Z with
    α = ½(1 + cos πt/T). gaussian: p_min + (1 − K p_min) · normalised exp(−(k − μ)²/2σ²) with μ = √(t/T) · (K − 1) and
    p_min = 1/Z, so that no level is ever forgotten.
    """
    if levels < 1:
        raise ValueError("there is no level")
    if not 0 <= progress <= 1:
        raise ValueError(f"progress is {progress}: it lies between 0 and 1")
    level_K = torch.arange(levels, dtype=torch.float64)
    total = levels * (levels + 1) / 2
    if kind == "classical":
        return (level_K == min(int(levels * progress), levels - 1)).double()
    if kind == "balanced":
        return torch.full_like(level_K, 1 / levels)
    if kind == "cosine":
        early = (1 + math.cos(math.pi * progress)) / 2
        return (early * (levels - level_K) + (1 - early) * (level_K + 1)) / total
    if kind == "gaussian":
        bell_K = (-((level_K - math.sqrt(progress) * (levels - 1)) ** 2) / (2 * sigma**2)).exp()
        return 1 / total + (1 - levels / total) * bell_K / bell_K.sum()
    raise ValueError(f"unknown schedule {kind!r}")


def draw_levels(probabilities_K: Float[Tensor, " K"], uniform_N: Float[Tensor, " N"]) -> Int[Tensor, " N"]:
    """The level whose part of [0, 1) contains the uniform number. Probability 0 is never drawn."""
    levels_N = torch.searchsorted(probabilities_K.cumsum(0), uniform_N, right=True)
    return levels_N.clamp(max=int(probabilities_K.nonzero()[-1]))


def easiest(losses_N: Float[Tensor, " N"], share: float, tie_N: Float[Tensor, " N"]) -> Int[Tensor, " M"]:
    """The ⌈share · N⌉ rows with the lowest losses; those of equal loss by the lower `tie_N`. NaN counts as the largest.

    Self-paced learning (Kumar et al. 2010) takes a row where its loss is below λ: here λ is the quantile `share`.
    """
    order_N = tie_N.argsort(stable=True)
    hardest_last_N = losses_N.nan_to_num(nan=torch.inf, posinf=torch.inf)
    order_N = order_N[hardest_last_N[order_N].argsort(stable=True)]
    return order_N[: math.ceil(share * len(losses_N))]


def weighted_order(
    weight_N: Float[Tensor, " N"], first_N: Bool[Tensor, " N"], uniform_N: Float[Tensor, " N"]
) -> Int[Tensor, " N"]:
    """All rows in the order of weighted draws without replacement, those of `first_N` before the others.

    The row of the smallest −log(u)/w comes first (Efraimidis and Spirakis 2006): with probability w/Σw for each place.
    """
    order_N = (-uniform_N.clamp(min=1e-300).log() / weight_N).argsort(stable=True)
    return order_N[(~first_N)[order_N].long().argsort(stable=True)]
