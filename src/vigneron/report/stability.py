"""How steadily a run went, in numbers: PGSRM's §5 speaks of collapses, excursions and spikes.

Pure: a run's logged values in, numbers out. None: there was nothing to measure.
"""

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from vigneron.report.curves import Records, series, smoothed


class Collapses(NamedTuple):
    collapsed: int
    recovered: int


def final_window(steps: int) -> int:
    """The last 5 % of the steps, at least 5 and at most 200 of them."""
    return min(200, max(5, math.ceil(steps / 20)))


def stability(records: Records) -> dict[str, float | None]:
    """Of one run's records."""
    rewards = series(records, "reward")[1]
    entropies = series(records, "entropy")[1]
    collapses = entropy_collapses(entropies) if entropies else None
    return {
        "entropy_collapses": collapses and collapses.collapsed,
        "entropy_recoveries": collapses and collapses.recovered,
        "kl_largest_rise": largest_rise(smoothed(series(records, "kl")[1])),
        "kl_previous_largest": max(series(records, "kl_previous")[1], default=None),
        "reward_drop": drop_from_the_best(rewards),
        "steps_without_reward": share_not_above_zero(rewards),
    }


def entropy_collapses(entropies: Sequence[float]) -> Collapses:
    """How often entropy fell below its floor, and how often it came back to twice the floor.

    The floor is a tenth of the first value, or 0.05 nats where that is more. Between the floor and twice the floor
    nothing is counted, so that noise about the floor is one collapse, not many. A run that starts below its floor has
    not fallen.
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


def drop_from_the_best(values: Sequence[float]) -> float | None:
    """The best mean over as many consecutive steps as the final value is taken over, less the final value."""
    if not values:
        return None
    width = min(len(values), final_window(len(values)))
    sums = [0.0, *accumulate(values)]
    means = [(after - before) / width for before, after in zip(sums, sums[width:], strict=False)]
    return max(means) - means[-1]


def share_not_above_zero(values: Sequence[float]) -> float | None:
    """Steps whose mean reward is not above 0: with rewards that are never negative, steps that taught nothing."""
    return sum(value <= 0 for value in values) / len(values) if values else None
