"""What the studies in pieces (`dense_study`, `rubric_study`) share: model, seeds, evaluation, the choice of a rate, and
the time that is planned."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.study_store import Result

TUNING_SEED = 100
# Seconds on an H200 with a second process beside: what starting takes.
START_S = 6.0


@dataclass(frozen=True, kw_only=True)
class StudySetting:
    """Fields of both studies."""

    steps: int
    tuning_steps: int
    eval_every: int
    rates: tuple[float, ...]
    seeds: tuple[int, ...] = (0, 1, 2, 3)
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


def middle(rates: Sequence[float]) -> float:
    return rates[len(rates) // 2]


def chosen_rate(tried: Sequence[Result | None], rates: Sequence[float]) -> float | None:
    """By `area`, the mean of all evaluations; of equals the middle rate, or else the smaller. None: one is missing."""
    if any(result is None for result in tried):
        return None
    found = {result["rate"]: result["area"] for result in tried if result is not None}
    best = [rate for rate, value in found.items() if value == max(found.values())]
    return middle(rates) if middle(rates) in best else min(best)
