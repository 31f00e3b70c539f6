"""Points of a curve, and how many of them become few. Pure."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

MOST = 1_000
"""More points in a curve nobody can see."""


class Span(NamedTuple):
    """What a stretch of steps holds: where it lies, its lowest, its highest, the sum, and how many values."""

    step: float
    low: float
    high: float
    total: float
    number: int


@dataclass
class Curve:
    """`lows` and `highs` are the means themselves where a point is one step."""

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


def is_value(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def values_of(record: Mapping[str, Any]) -> dict[str, float]:
    """The figures of a line of metrics; what was not there, or is no finite number, is left out."""
    return {name: float(value) for name, value in record.items() if name != "step" and is_value(value)}


def points(steps: Sequence[int], values: Sequence[float]) -> list[Span]:
    return [Span(step, value, value, value, 1) for step, value in zip(steps, values, strict=True)]


def within(steps: Sequence[int], first: float, last: float) -> slice:
    """Where the steps of a window lie in a sorted sequence."""
    return slice(bisect_left(steps, first), bisect_right(steps, last))


def joined(spans: Sequence[Span]) -> Span:
    return Span(
        (spans[0].step + spans[-1].step) / 2,
        min(span.low for span in spans),
        max(span.high for span in spans),
        math.fsum(span.total for span in spans),
        sum(span.number for span in spans),
    )


def by_width(spans: Iterable[Span], width: int) -> dict[int, Span]:
    """Joined into stretches of so many steps, each under the step that it begins with."""
    by_start: dict[int, list[Span]] = {}
    for span in spans:
        by_start.setdefault(int(span.step // width) * width, []).append(span)
    return {start: joined(some) for start, some in by_start.items()}


def thinned(spans: Sequence[Span], most: int = MOST) -> list[Span]:
    """At most so many: neighbours are joined, so that no spike is lost."""
    if len(spans) <= most:
        return list(spans)
    edges = [len(spans) * part // most for part in range(most + 1)]
    return [joined(spans[a:b]) for a, b in pairwise(edges)]
