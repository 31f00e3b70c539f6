"""What the studies in pieces (`dense_study`, `rubric_study`) share: model, seeds, evaluation, the choice of a rate, and
the time that is planned."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

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


def tuning(
    make: Callable[[float], Job],
    rates: Sequence[float],
    runs: Path,
    choose: Callable[[Sequence[Result | None], Sequence[float]], float | None] = chosen_rate,
) -> list[Job]:
    """The tuning runs of an arm. Where the largest rate is chosen, the next one is tried too: no arm is judged at the
    edge of what was tried. A single rate is no choice."""
    tried = list(rates)
    while True:
        jobs = [make(rate) for rate in tried]
        chosen = choose([result_of(job, runs) for job in jobs], tried)
        if chosen is None or len(rates) == 1 or chosen < tried[-1]:
            return jobs
        tried.append(next_rate(tried[-1]))


def next_rate(rate: float) -> float:
    """1, 2, 5, 10, …"""
    digit, exponent = f"{rate:.0e}".split("e")
    return float(f"{ {'1': '2', '2': '5', '5': '10'}[digit] }e{exponent}")


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
