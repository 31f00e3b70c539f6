"""What the studies in pieces (`dense_study`, `rubric_study`) share: model, seeds, evaluation, the choice of a rate, and
the time that is planned."""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.paired import table
from benchmarks.study_jobs import Job, result_of
from benchmarks.study_store import Result

TUNING_SEED = 100
SEEDS = (0, 1, 2, 3)
# What starting is planned to take on an H200 with a second process beside, in seconds. A guess, like the studies'
# other plans: no archived result has its time.
START_S = 6.0


@dataclass(frozen=True, kw_only=True)
class StudySetting:
    """Fields of both studies."""

    steps: int
    tuning_steps: int
    eval_every: int
    rates: tuple[float, ...]
    seeds: tuple[int, ...] = SEEDS
    model: str = "smollm2-135m"

    def run_changes(self, steps: int, seed: int, rate: float | None = None) -> tuple[str, ...]:
        """A run's changes to its recipe that have nothing to do with its arm. Without a rate, the recipe's."""
        rates = (f"optimizer.actor_lr={rate!r}",) if rate is not None else ()
        length = (f"steps={steps}", f"eval_every={min(self.eval_every, steps)}")
        return (f"model.name={self.model}", *rates, *length, f"seed={seed}", "save_every=0")

    def planned_seconds(self, steps: int, step_s: float, evaluation_s: float) -> float:
        return START_S + step_s * steps + evaluation_s * (1 + steps // self.eval_every)


def smallest(model: str) -> dict[str, object]:
    """The fields of a smoke test."""
    return {"steps": 2, "tuning_steps": 2, "eval_every": 2, "seeds": (0,), "model": model}


def not_yet(seeds: int) -> str:
    """What is said in place of a verdict that other seeds could change."""
    return f"not yet ({seeds} of {len(SEEDS)} seeds)"


def is_final(verdict: str) -> bool:
    return not verdict.startswith("not yet")


def middle(rates: Sequence[float]) -> float:
    return rates[len(rates) // 2]


def rate_of(jobs: Sequence[Job], runs: Path) -> float | None:
    """What the tuning runs of an arm choose."""
    return chosen_rate([result_of(job, runs) for job in jobs], [job.labels["rate"] for job in jobs])


def chosen_rate(tried: Sequence[Result | None], rates: Sequence[float]) -> float | None:
    """By `area`, the mean of all evaluations; of equals the middle rate, or else the smaller. None: one is missing."""
    if any(result is None for result in tried):
        return None
    found = {result["rate"]: result["area"] for result in tried if result is not None}
    best = [rate for rate, value in found.items() if value == max(found.values())]
    return middle(rates) if middle(rates) in best else min(best)


FURTHER = 2
"""Rates beyond each edge of the grid that may be tried."""
DIGITS = (1, 2, 5)


def tuning(make: Callable[[float], Job], rates: Sequence[float], runs: Path) -> list[Job]:
    """The tuning runs of an arm, by rate. Where the largest or the smallest rate is better than its neighbour, the next
    one is tried too: no arm is judged at the edge of what was tried. A single rate is no choice."""
    tried = list(rates)
    for further in (next_rate, previous_rate) if len(rates) > 1 else ():
        for _ in range(FURTHER):
            beside, edge = tried[-2:] if further is next_rate else (tried[1], tried[0])
            results = [found for rate in tried if (found := result_of(make(rate), runs)) is not None]
            areas = {found["rate"]: found["area"] for found in results}
            if len(areas) < len(tried) or areas[edge] < max(areas.values()) or areas[edge] == areas[beside]:
                break
            tried = [*tried, further(edge)] if further is next_rate else [further(edge), *tried]
    return [make(rate) for rate in tried]


def next_rate(rate: float) -> float:
    """1, 2, 5, 10, …: the first of these that is larger."""
    power = 10.0 ** math.floor(math.log10(rate))
    return min(_round(digit * power) for digit in (*DIGITS, 10) if digit * power > rate * 1.01)


def previous_rate(rate: float) -> float:
    power = 10.0 ** math.floor(math.log10(rate))
    return max(_round(digit * power) for digit in (0.5, *DIGITS) if digit * power < rate * 0.99)


def _round(rate: float) -> float:
    return float(f"{rate:.0e}")


def current(
    results: Sequence[Result],
    group: Callable[[Result], Hashable],
    chosen: Callable[[Sequence[Result]], Mapping[str, Any]],
) -> list[Result]:
    """Without runs that tuning would not choose any more: a later rate was better, and they are to be done again.
    `chosen`: the labels that a group's tuning runs choose."""
    tried: dict[Hashable, list[Result]] = {}
    for one in results:
        if one.get("tuned") is False:
            tried.setdefault(group(one), []).append(one)
    labels = {key: chosen(some) for key, some in tried.items()}
    return [one for one in results if not one.get("tuned") or labels.get(group(one), {}).items() <= one.items()]


def chosen_label(tried: Sequence[Result]) -> dict[str, float | None]:
    return {"rate": chosen_rate(tried, sorted(one["rate"] for one in tried))}


def tuning_table(rows: Sequence[Result], part: str, arm: Callable[[Result], str]) -> str:
    """The `area` of the tuning runs of a part, by arm and rate."""
    tried: dict[str, dict[float, float]] = {}
    for one in rows:
        if one.get("part") == part and not one["tuned"]:
            tried.setdefault(arm(one), {})[one["rate"]] = one["area"]
    rates = sorted({rate for by_rate in tried.values() for rate in by_rate})
    lines = [["tuning", *(f"{rate:g}" for rate in rates)]]
    for name, by_rate in tried.items():
        lines.append([name, *(f"{by_rate[rate]:.3f}" if rate in by_rate else "–" for rate in rates)])
    return table(lines)
