"""Sums over conversations, from which the metrics `turns/…` follow: those of several parts of a step add up."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import reduce
from operator import add
from typing import Any

TURN_REWARD = "turns/reward/"


@dataclass(frozen=True)
class TurnSums:
    sums: Mapping[str, float]
    """By metric."""
    counts: Mapping[str, int]
    """How many values are behind each of them."""
    rewarded: int = 0
    """Turns with a reward; without any, `turns/reward/N` is no metric."""
    complete: int = 0
    """Conversations that did not fail: what they log is averaged over them."""
    logged: Mapping[str, float] = field(default_factory=dict)
    """By the name in the log, which counts 0 in a conversation that does not log it."""
    missing: Mapping[str, int] = field(default_factory=dict)
    """Complete conversations that log None, which says that they have no such number."""

    def __add__(self, other: "TurnSums") -> "TurnSums":
        names = [each.name for each in fields(self)]
        return TurnSums(**{name: _added(getattr(self, name), getattr(other, name)) for name in names})

    def metrics(self) -> dict[str, float]:
        having = {name: self.complete - self.missing.get(name, 0) for name in self.logged}
        logged = {f"turns/{name}": total / having[name] for name, total in self.logged.items()}
        means = {
            name: total / self.counts[name]
            for name, total in self.sums.items()
            if self.rewarded or not name.startswith(TURN_REWARD)
        }
        return logged | means


def total(parts: Iterable[TurnSums | None]) -> TurnSums | None:
    """The sum of those that there are."""
    given = [part for part in parts if part is not None]
    return reduce(add, given) if given else None


def _added(one: Any, other: Any) -> Any:
    if not isinstance(one, Mapping):
        return one + other
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}
