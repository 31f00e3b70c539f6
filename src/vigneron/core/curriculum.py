"""How often each level of difficulty is drawn as training proceeds   (E2H: easy to hard)."""

import math
from typing import Literal

import torch
from jaxtyping import Float
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
