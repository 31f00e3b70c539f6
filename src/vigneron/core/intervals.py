"""Intervals of a share and of a mean."""

import math

import torch
from jaxtyping import Float
from torch import Tensor


def wilson(right: int | float, of: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's interval of a share, 95 % at z = 1.96; (0, 1) of nothing."""
    if not of:
        return 0.0, 1.0
    p, n = right / of, float(of)
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return max(0.0, centre - half), min(1.0, centre + half)


def bootstrap_interval(
    values_P: Float[Tensor, " P"], *, seed: int = 0, resamples: int = 2000, level: float = 0.95
) -> tuple[float, float]:
    """The percentile interval of the mean: P values are drawn with replacement, `resamples` times."""
    generator = torch.Generator().manual_seed(seed)
    means = torch.stack(
        [values_P[torch.randint(len(values_P), (len(values_P),), generator=generator)].mean() for _ in range(resamples)]
    )
    low, high = means.double().quantile(torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)).tolist()
    return low, high
