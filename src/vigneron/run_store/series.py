"""Series of values over steps: read from records, smoothed, averaged over seeds, and thinned to be drawn."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, NamedTuple

from vigneron.values import even_ranges, is_number

Records = Sequence[Mapping[str, Any]]
Line = tuple[list[float], list[float]]

MAX_POINTS = 400
"""Of a line in a report: more are not visible and only make the file larger."""


def series(records: Records, key: str, x: str = "step") -> Line:
    """(x, value) of the records that have the key; values that are not finite are left out."""
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


class Band(NamedTuple):
    """Over several runs, at each x: mean, minimum and maximum of the runs that have a value there."""

    xs: list[float]
    means: list[float]
    lows: list[float]
    highs: list[float]


def over_runs(lines: Sequence[Line]) -> Band:
    """The lines may differ in length and in their x."""
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


def thinned(xs: Sequence[float], ys: Sequence[float], limit: int = MAX_POINTS) -> Line:
    """At most `limit` points: the minimum and the maximum of every chunk, so that spikes stay."""
    if len(xs) <= limit:
        return list(xs), list(ys)
    indices: list[int] = []
    for chunk in even_ranges(len(xs), limit // 2):
        indices += sorted({min(chunk, key=ys.__getitem__), max(chunk, key=ys.__getitem__)})
    return [xs[i] for i in indices], [ys[i] for i in indices]


def thinned_band(band: Band, limit: int = MAX_POINTS) -> Band:
    """At most `limit` points on both edges together: minimum and maximum of every chunk."""
    if 2 * len(band.xs) <= limit:
        return band
    parts = even_ranges(len(band.xs), limit // 2)
    return Band(
        [fmean(band.xs[i] for i in chunk) for chunk in parts],
        [fmean(band.means[i] for i in chunk) for chunk in parts],
        [min(band.lows[i] for i in chunk) for chunk in parts],
        [max(band.highs[i] for i in chunk) for chunk in parts],
    )


class Span(NamedTuple):
    """One or more consecutive values: the middle of their steps, minimum, maximum, sum and count."""

    step: float
    low: float
    high: float
    total: float
    number: int


@dataclass
class Curve:
    """`lows` and `highs` equal `means` where every point is one step."""

    steps: list[float] = field(default_factory=list)
    means: list[float] = field(default_factory=list)
    lows: list[float] = field(default_factory=list)
    highs: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, spans: Iterable[Span]) -> "Curve":
        curve = cls()
        for span in spans:
            curve.steps.append(span.step)
            curve.means.append(span.total / span.number)
            curve.lows.append(span.low)
            curve.highs.append(span.high)
            curve.counts.append(span.number)
        return curve


def spans_of(steps: Sequence[int], values: Sequence[float]) -> list[Span]:
    """One span per value."""
    return [Span(step, value, value, value, 1) for step, value in zip(steps, values, strict=True)]


def joined(spans: Sequence[Span]) -> Span:
    return Span(
        (spans[0].step + spans[-1].step) / 2,
        min(span.low for span in spans),
        max(span.high for span in spans),
        math.fsum(span.total for span in spans),
        sum(span.number for span in spans),
    )


def joined_by_width(spans: Iterable[Span], width: int) -> dict[int, Span]:
    """Joined into spans of `width` steps, each under its first step."""
    by_start: dict[int, list[Span]] = {}
    for span in spans:
        by_start.setdefault(int(span.step // width) * width, []).append(span)
    return {start: joined(some) for start, some in by_start.items()}


def joined_to(spans: Sequence[Span], limit: int) -> list[Span]:
    """At most `limit` spans: neighbours are joined, so that spikes stay."""
    if len(spans) <= limit:
        return list(spans)
    return [joined(spans[chunk.start : chunk.stop]) for chunk in even_ranges(len(spans), limit)]
