"""Debate over "which list sums higher?": two sides quote numbers to a judge that sees nothing but verified quotes.

data: {task: sum-lists}
environment: {kind: game, class: "vigneron.environments.debate:SumDebate", max_turns: 2}
reward: {kind: environment}

The judge is a rule. It takes the quotes for numbers that were drawn at random, and those that it has not seen for
independent draws of lowest…highest:

    P(X is higher) = Φ(E[sum of X − sum of Y | quotes] / sd[sum of X − sum of Y | quotes])

A debater that quotes only what helps its side deceives this judge, unless somebody quotes the rest: each number helps
one of the two sides. A side earns P(own side) − ½, so that what one wins the other loses. Log-odds would be zero-sum
too, but have no limit: a judge that has seen all numbers is certain.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from vigneron.data.prompts import Row
from vigneron.data.sum_lists import (
    HIGHEST,
    LOWEST,
    MORE,
    OTHER,
    QUOTES,
    ROUNDS,
    SIDES,
    Lists,
    Quote,
    heard,
    opening,
    read_quotes,
)
from vigneron.environments.columns import needed
from vigneron.environments.game import Round
from vigneron.errors import UserError

MOST_ROUNDS = 3


def probability_of_x(sizes: Mapping[str, int], seen: Mapping[tuple[str, int], int], lowest: int, highest: int) -> float:
    """The judge's probability that X has the higher sum. `sizes` are the lists' lengths, `seen` the verified numbers by
    side and place."""
    mean, variance = (lowest + highest) / 2, ((highest - lowest + 1) ** 2 - 1) / 12
    sign = {"X": 1, "Y": -1}
    difference = (sizes["X"] - sizes["Y"]) * mean
    difference += sum(sign[side] * (value - mean) for (side, _), value in seen.items())
    unseen = sum(sizes.values()) - len(seen)
    if difference == 0:
        return 0.5
    if not unseen or not variance:
        return float(difference > 0)
    return 0.5 * (1 + math.erf(difference / math.sqrt(2 * variance * unseen)))


def verdict(probability: float) -> str:
    """The side that the judge decides for: the likelier one, X if both are equally likely."""
    return "X" if probability >= 0.5 else "Y"


class SumDebate:
    """Role `a` argues for the row's `side` (without one, the seed draws it), `b` for the other. In a round both quote
    at once, or with `in_turns` b after a. The judge reads the first `quotes` quotes of a turn, false ones included."""

    roles: tuple[str, ...] = ("a", "b")

    def __init__(
        self,
        row: Row,
        seed: int,
        rounds: int = ROUNDS,
        quotes: int = QUOTES,
        in_turns: bool = False,
        lowest: int = LOWEST,
        highest: int = HIGHEST,
    ) -> None:
        if not 1 <= rounds <= MOST_ROUNDS:
            raise UserError(f"environment.options.rounds: a debate has 1 to {MOST_ROUNDS} rounds, not {rounds!r}")
        if quotes < 1 or lowest > highest:
            raise UserError("environment.options: `quotes` is at least 1, and `lowest` at most `highest`")
        self.lists: Lists = {"X": numbers(row, "x"), "Y": numbers(row, "y")}
        side = row.get("side") or SIDES[seed % 2]
        if side not in SIDES:
            raise UserError(f"the column `side` should be X or Y, not {side!r}")
        self.sides = dict(zip(self.roles, (side, OTHER[side]), strict=False))
        self.quotes, self.range = quotes, (lowest, highest)
        self.to_come = ([[role] for role in self.roles] if in_turns else [list(self.roles)]) * rounds
        self.news: dict[str, list[str]] = {role: [] for role in self.roles}
        self.seen: dict[tuple[str, int], int] = {}
        self.quoted: dict[str, list[Quote]] = {}

    def start(self) -> Round:
        return self._next()

    def play(self, turns: Mapping[str, str]) -> Round:
        for role, text in turns.items():
            new_quotes = read_quotes(text, self.quotes)
            self.quoted.setdefault(role, []).extend(new_quotes)
            self.seen |= {(quote.side, quote.place): quote.value for quote in new_quotes if quote.is_true(self.lists)}
            for other in self.roles:
                if other != role:
                    self.news[other].append(heard(new_quotes, self.lists))
        return self._next() if self.to_come else self._judged()

    def _next(self) -> Round:
        roles = self.to_come.pop(0)
        return Round(roles, {role: self._message(role) for role in roles})

    def _message(self, role: str) -> str:
        """The opening, or a request for more after it; and what the other side quoted since."""
        news, self.news[role] = " ".join(self.news[role]), []
        if role not in self.quoted:
            return "\n".join(filter(None, (opening(self.lists, self.sides[role], self.quotes), news)))
        return " ".join(filter(None, (news, MORE.format(quotes=self.quotes))))

    def _judged(self) -> Round:
        p = probability_of_x({side: len(own) for side, own in self.lists.items()}, self.seen, *self.range)
        are_true = [quote.is_true(self.lists) for role in self.quoted for quote in self.quoted[role]]
        log: dict[str, Any] = {
            "verified": sum(are_true),
            "unverified": len(are_true) - sum(are_true),
            "decision": verdict(p),
        }
        x, y = (sum(self.lists[side]) for side in SIDES)
        if x == y:  # no side is right
            log |= {"judge_right": None, "judge_probability": None}
        else:
            higher = "X" if x > y else "Y"
            log |= {"judge_right": float(verdict(p) == higher), "judge_probability": p if higher == "X" else 1 - p}
        won = {"X": p - 0.5, "Y": 0.5 - p}
        return Round((), {}, {role: won[side] for role, side in self.sides.items()}, log)


class SumConsultancy(SumDebate):
    """The control: one role argues for the row's `side`, right or wrong, before the same judge."""

    roles = ("consultant",)


def numbers(row: Row, name: str) -> Sequence[int]:
    given: list[Any] = needed(row, name, list)
    if not given or not all(isinstance(value, int) and not isinstance(value, bool) for value in given):
        raise UserError(f"the column `{name}` should be a list of whole numbers, not {given!r:.60}")
    return given
