"""Runs that end as soon as they have learned what a test is about: the recipe's steps are a limit."""

from typing import Any

from vigneron.training.callbacks import Silent


class Learned(Exception):
    """Raised out of a run whose metric has reached its bound."""


class UntilLearned(Silent):
    """Ends a run when the mean of a metric over five steps is above a bound, or by so much above that of the first."""

    def __init__(self, bound: float, key: str = "reward", *, over_start: bool = False) -> None:
        self._bound, self._key, self._over_start = bound, key, over_start
        self.values: list[float] = []

    def step(self, run: Any, metrics: Any, *_: Any) -> None:
        self.values.append(metrics[self._key])
        start = sum(self.values[:5]) / 5 if self._over_start else 0.0
        if len(self.values) >= 5 and sum(self.values[-5:]) / 5 > start + self._bound:
            raise Learned
