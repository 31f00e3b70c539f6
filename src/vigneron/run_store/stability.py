"""The stability of a run in numbers: the collapses, excursions and spikes of PGSRM's §5.

Pure: a run's logged values in, numbers out. None: there is nothing to measure.
"""

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from vigneron.run_store.series import Records, series, smoothed

STABILITY_KEYS = (
    "entropy_collapses",
    "entropy_recoveries",
    "kl_largest_rise",
    "kl_previous_largest",
    "reward_drop",
    "steps_without_reward",
)


class Collapses(NamedTuple):
    collapsed: int
    recovered: int


def final_window(steps: int) -> int:
    """The last 5 % of the steps, at least 5 and at most 200 of them."""
    return min(200, max(5, math.ceil(steps / 20)))


def stability(records: Records) -> dict[str, float | None]:
    """Of one run's records, by `STABILITY_KEYS`."""
    rewards = series(records, "reward")[1]
    entropies = series(records, "entropy")[1]
    collapses = entropy_collapses(entropies) if entropies else None
    values = (
        collapses and collapses.collapsed,
        collapses and collapses.recovered,
        largest_rise(smoothed(series(records, "kl")[1])),
        max(series(records, "kl_previous")[1], default=None),
        drop_from_best(rewards),
        share_not_above_zero(rewards),
    )
    return dict(zip(STABILITY_KEYS, values, strict=True))


def entropy_collapses(entropies: Sequence[float]) -> Collapses:
    """How often entropy fell below a floor, and how often it came back to twice the floor.

    The floor is a tenth of the first value, or 0.05 nats where that is more. Between the floor and twice the floor
    nothing is counted, so that noise around the floor is one collapse, not many. A run that starts below its floor has
    not collapsed.
    """
    if not entropies:
        return Collapses(0, 0)
    floor = max(entropies[0] / 10, 0.05)
    low = entropies[0] < floor
    collapsed = recovered = 0
    for entropy in entropies:
        if not low and entropy < floor:
            low, collapsed = True, collapsed + 1
        elif low and entropy >= 2 * floor:
            low, recovered = False, recovered + (collapsed > 0)
    return Collapses(collapsed, recovered)


def largest_rise(values: Sequence[float]) -> float | None:
    """The largest rise from one value to the next; 0 where it never rose."""
    rises = [after - before for before, after in pairwise(values)]
    return max(0.0, *rises) if rises else None


def drop_from_best(values: Sequence[float]) -> float | None:
    """The best mean over as many consecutive steps as the final value is a mean of, minus the final value."""
    if not values:
        return None
    width = min(len(values), final_window(len(values)))
    sums = [0.0, *accumulate(values)]
    means = [(after - before) / width for before, after in zip(sums, sums[width:], strict=False)]
    return max(means) - means[-1]


def share_not_above_zero(values: Sequence[float]) -> float | None:
    """Share of steps whose mean reward is not above 0: no learning signal where rewards are never negative."""
    return sum(value <= 0 for value in values) / len(values) if values else None
