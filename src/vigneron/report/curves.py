"""Curves of runs: read from records, smoothed, put together over seeds, and thinned out to be drawn."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from vigneron.values import even_ranges, is_number

Records = Sequence[Mapping[str, Any]]
Line = tuple[list[float], list[float]]

MOST_POINTS = 400
"""More of them in a line nobody can see, and the file grows."""


class Band(NamedTuple):
    """Over several runs, at each x: the mean, the smallest and the largest value of those that got there."""

    xs: list[float]
    means: list[float]
    lows: list[float]
    highs: list[float]


def series(records: Records, key: str, x: str = "step") -> Line:
    """(x, value) of the records that have it; what is not a finite number is left out."""
    points = [(record[x], record[key]) for record in records if is_number(record.get(key))]
    return [where for where, _ in points], [value for _, value in points]


def smoothed(values: Sequence[float], weight: float | None = None) -> list[float]:
    """Exponential mean, corrected for its start, over about ten values, or a hundredth of a long run."""
    weight = 1 - 1 / max(10.0, len(values) / 100) if weight is None else weight
    mean, norm, out = 0.0, 0.0, []
    for value in values:
        mean = weight * mean + (1 - weight) * value
        norm = weight * norm + (1 - weight)
        out.append(mean / norm)
    return out


def over_runs(lines: Sequence[Line]) -> Band:
    """Runs may differ in length and in where they were measured."""
    values: dict[float, list[float]] = {}
    for line in lines:
        for x, value in zip(*line, strict=True):
            values.setdefault(x, []).append(value)
    xs = sorted(values)
    return Band(
        xs,
        [fmean(values[x]) for x in xs],
        [min(values[x]) for x in xs],
        [max(values[x]) for x in xs],
    )


def thinned(xs: Sequence[float], ys: Sequence[float], most: int = MOST_POINTS) -> Line:
    """At most so many points: of every stretch its lowest and its highest, so that no spike is lost."""
    if len(xs) <= most:
        return list(xs), list(ys)
    kept: list[int] = []
    for stretch in even_ranges(len(xs), most // 2):
        kept += sorted({min(stretch, key=ys.__getitem__), max(stretch, key=ys.__getitem__)})
    return [xs[i] for i in kept], [ys[i] for i in kept]


def thinned_band(band: Band, most: int = MOST_POINTS) -> Band:
    """At most so many points on both edges together: of every stretch the outermost."""
    if 2 * len(band.xs) <= most:
        return band
    stretches = even_ranges(len(band.xs), most // 2)
    return Band(
        [fmean(band.xs[i] for i in stretch) for stretch in stretches],
        [fmean(band.means[i] for i in stretch) for stretch in stretches],
        [min(band.lows[i] for i in stretch) for stretch in stretches],
        [max(band.highs[i] for i in stretch) for stretch in stretches],
    )
