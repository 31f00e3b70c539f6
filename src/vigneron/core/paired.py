"""The interval of a change on the same rows, without tensors: lists of runs, which import no torch, need it too."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from statistics import NormalDist
from typing import NamedTuple

SLICES = 10_000


class Interval(NamedTuple):
    mean: float
    low: float
    high: float


def paired_interval(changes: Sequence[float], largest: float, level: float = 0.95) -> Interval | None:
    """The interval of the mean change of R rows that were scored twice, for new rows; None of fewer than two.

    `largest`: the largest change that a row can have, 1 for right and wrong answers. Two rows are added, one unchanged,
    one half a rise and half a fall of that size, and Student's interval is taken (Agresti and Min 2005, equation 5,
    with t for z). So three rows that all rise do not make an interval without width, and none that changes neither:

        centre = Σ d / (R + 2)        σ² = (Σ d² + largest² − (Σ d)² / (R + 2)) / (R + 2)²        centre ± t(R − 1) σ
    """
    rows = len(changes)
    if rows < 2:
        return None
    total, added = math.fsum(changes), rows + 2
    squares = math.fsum(change * change for change in changes) + largest * largest
    sigma = math.sqrt(max(0.0, squares - total * total / added)) / added
    reach = student_t(float(rows - 1), level) * sigma
    low, high = (max(-largest, min(largest, total / added + side)) for side in (-reach, reach))
    return Interval(total / rows, min(low, total / rows), max(high, total / rows))


def shares_interval(before: float, after: float, rows: int, level: float = 0.95) -> Interval | None:
    """The interval of the change of a share where it is not known which of the rows changed: two independent shares,
    each with one success and one failure added (Agresti and Caffo 2000). Wider than a paired one; None of no rows."""
    if not rows:
        return None
    first, second = ((share * rows + 1) / (rows + 2) for share in (before, after))
    sigma = math.sqrt((first * (1 - first) + second * (1 - second)) / (rows + 2))
    reach, change = NormalDist().inv_cdf((1 + level) / 2) * sigma, after - before
    low, high = max(-1.0, second - first - reach), min(1.0, second - first + reach)
    return Interval(change, min(low, change), max(high, change))


@lru_cache(maxsize=256)
def student_t(freedom: float, level: float = 0.95) -> float:
    """t with P(|T| < t) = level: with t = √ν tan θ, the density is proportional to cos^(ν − 1) θ."""
    if freedom > 1000:
        return NormalDist().inv_cdf((1 + level) / 2)
    width = math.pi / 2 / SLICES
    mass = [math.cos((place + 0.5) * width) ** (freedom - 1) for place in range(SLICES)]
    below = [0.0, *accumulate(mass)]
    wanted = level * below[-1]
    at = bisect_left(below, wanted) - 1
    inside = (wanted - below[at]) / mass[at]
    return math.sqrt(freedom) * math.tan((at + inside) * width)
