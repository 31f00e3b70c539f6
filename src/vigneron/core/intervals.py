"""Intervals of a share, of a mean, and of a mean over seeds and rows."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from vigneron.core.paired import Interval, student_t


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


LARGEST_DRAW = 10**6
"""Numbers drawn at a time."""


def seeds_and_rows_interval(
    scores_SR: Float[Tensor, "S R"],
    minus_TR: Float[Tensor, "T R"] | None = None,
    *,
    seed: int = 0,
    resamples: int = 2000,
    level: float = 0.95,
) -> Interval | None:
    """The interval of the mean score over S seeds and R rows, for new seeds and new rows; None of a single number.

    With `minus_TR`, of the difference to another arm's mean, on the same rows with seeds of its own. Of arms with the
    same seeds, give the scores' difference.

    A bootstrap over both: seeds (S − 1 of S) and rows (R − 1 of R) are drawn with replacement, the two independently.
    It gives the interval's skew. Its width is 2 t σ, because a crossed bootstrap counts the noise of seed and row
    together up to three times (Owen 2007), and knows nothing of three seeds being few:

        σ² = var of the rows' means / R + Σ over the arms of max(0, MS_seeds − MS_rest) / (S R)

    with the mean squares of a two-way analysis of variance, and t of Student's distribution with Satterthwaite's
    degrees of freedom. One seed: the interval covers other rows only. One row: other seeds only, and it is Student's.
    """
    arms = [scores_SR.double()] + ([] if minus_TR is None else [minus_TR.double()])
    signs, rows = (1.0, -1.0), scores_SR.shape[1]
    variance, freedom = _variance(arms)
    mean = sum(sign * float(arm_SR.mean()) for sign, arm_SR in zip(signs, arms, strict=False))
    if freedom is None:
        return None
    generator = torch.Generator().manual_seed(seed)
    weights_NR = _resampled(rows, resamples, generator)
    means_N = torch.zeros(resamples, dtype=torch.float64)
    for sign, arm_SR in zip(signs, arms, strict=False):
        means_N += sign * (_resampled(len(arm_SR), resamples, generator) @ arm_SR * weights_NR).sum(1)
    tails = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    low, high = (means_N.quantile(tails) - mean).tolist()
    width = 2 * student_t(freedom, level) * math.sqrt(variance)
    below = -low / (high - low) if rows > 1 and high > 0 > low else 0.5
    return Interval(mean, mean - below * width, mean + (1 - below) * width)


def _variance(arms: list[Tensor]) -> tuple[float, float | None]:
    """σ² of the difference of the arms' means, and its degrees of freedom; None where nothing was repeated."""
    rows = arms[0].shape[1]
    means_R = arms[0].mean(0) - (arms[1].mean(0) if len(arms) > 1 else 0.0)
    parts = [(float(means_R.var()) / rows, rows - 1)] if rows > 1 else []
    for arm_SR in arms:
        seeds = len(arm_SR)
        if seeds == 1:
            continue
        means_S1 = arm_SR.mean(1, keepdim=True)
        between = rows * float(means_S1.var())
        rest_SR = arm_SR - means_S1 - arm_SR.mean(0) + arm_SR.mean()
        rest = float(rest_SR.square().sum()) / ((seeds - 1) * (rows - 1)) if rows > 1 else 0.0
        if between > rest or rows == 1:
            parts.append(((between - rest) / (seeds * rows), seeds - 1))
    if not parts:
        return 0.0, None
    total = sum(part for part, _ in parts)
    uncertain = sum(part**2 / freedom for part, freedom in parts)
    return total, total**2 / uncertain if uncertain else 1.0


def _resampled(count: int, resamples: int, generator: torch.Generator) -> Float[Tensor, "N C"]:
    """The weights of `count` things in each resample: count − 1 are drawn, which makes the variance unbiased."""
    drawn = max(1, count - 1)
    weights_NC = torch.zeros(resamples, count, dtype=torch.float64)
    for part_MC in weights_NC.split(max(1, LARGEST_DRAW // drawn)):
        drawn_MD = torch.randint(count, (len(part_MC), drawn), generator=generator)
        part_MC.scatter_add_(1, drawn_MD, torch.full(drawn_MD.shape, 1 / drawn, dtype=torch.float64))
    return weights_NC
