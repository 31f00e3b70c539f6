"""Which of two lists has the higher sum? Its rows, what debaters read and quote, and debates to warm a model up with.

The lists are X and Y, and every number has a name: `X2=34`. A quote is such a name with its number; a rule verifies it.
Every question has two rows, which differ in the side that role `a` argues for.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from vigneron.data.prompts import Row

SIDES = ("X", "Y")
OTHER = {"X": "Y", "Y": "X"}
LENGTH = 4
LOWEST, HIGHEST = 1, 99
QUOTES = 2
"""Numbers that a turn may quote, in the rows' prompts."""
ROUNDS = 2
QUESTIONS = {"train": 300, "tuning": 40, "held_out": 100}
PROMPT = "{shown}\nWhich list has the higher sum? You argue for {side}. Quote up to {quotes} numbers as they stand."
MORE = "Quote up to {quotes} further numbers."
QUOTE = re.compile(r"([XY])(\d{1,3}) ?= ?(-?\d{1,9})(?!\d)")

Lists = Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class Quote:
    side: str
    place: int
    """From 1."""
    value: int

    def __str__(self) -> str:
        return f"{self.side}{self.place}={self.value}"

    def is_true(self, lists: Lists) -> bool:
        own = lists[self.side]
        return 1 <= self.place <= len(own) and own[self.place - 1] == self.value


def read_quotes(text: str, most: int) -> list[Quote]:
    """The first quotes of a text, true or not."""
    found: list[Quote] = []
    for match in QUOTE.finditer(text):
        if len(found) == most:
            break
        found.append(Quote(match[1], int(match[2]), int(match[3])))
    return found


def shown(lists: Lists) -> str:
    return "\n".join(" ".join(str(Quote(side, n, v)) for n, v in enumerate(lists[side], 1)) for side in SIDES)


def opening(lists: Lists, side: str, quotes: int) -> str:
    """What a debater reads first."""
    return PROMPT.format(shown=shown(lists), side=side, quotes=quotes)


def heard(quotes: Sequence[Quote], lists: Lists) -> str:
    """What a debater reads of the other's turn, as the judge sees it."""
    marked = [f"{quote} ({'verified' if quote.is_true(lists) else 'unverified'})" for quote in quotes]
    return f"The other side quoted {', '.join(marked) if marked else 'nothing'}."


def generate(length: int = LENGTH, seed: int = 0) -> list[Row]:
    """Two rows for each question. No two questions have the same lists, in whichever order; X is higher in half."""
    random, seen, rows = Random(f"sum-lists {length} {seed}"), set[tuple[tuple[int, ...], ...]](), list[Row]()
    for split, count in QUESTIONS.items():
        for number in range(count):
            while True:
                low, high = sorted(([random.randint(LOWEST, HIGHEST) for _ in range(length)] for _ in SIDES), key=sum)
                key = tuple(sorted(tuple(sorted(one)) for one in (low, high)))
                if sum(low) < sum(high) and key not in seen:
                    break
            seen.add(key)
            lists = {"X": high, "Y": low} if number % 2 else {"X": low, "Y": high}
            rows += [list_row(lists, side, split) for side in SIDES]
    return rows


def list_row(lists: Lists, side: str, split: str) -> Row:
    higher = max(SIDES, key=lambda one: sum(lists[one]))
    return {
        "shown": shown(lists),
        "x": list(lists["X"]),
        "y": list(lists["Y"]),
        "higher": higher,
        "side": side,
        "split": split,
    }


def warm_up(length: int = LENGTH, seed: int = 0) -> list[Row]:
    """The same rows, those to train on with a `play`: true quotes that are drawn at random, for whichever side. Half of
    the plays are debates, half consultancies."""
    random = Random(f"sum-lists play {length} {seed}")
    return [
        {**row, "play": careless_play(row, random, debate=number % 4 < 2)} if row["split"] == "train" else row
        for number, row in enumerate(generate(length, seed))
    ]


def careless_play(row: Row, random: Random, *, debate: bool) -> list[dict[str, Any]]:
    """The messages after the prompt."""
    lists = {"X": row["x"], "Y": row["y"]}
    every = [Quote(side, n, value) for side in SIDES for n, value in enumerate(lists[side], 1)]
    play: list[dict[str, Any]] = []
    for turn in range(ROUNDS):
        if turn:
            other = f"{heard(random.sample(every, QUOTES), lists)} " if debate else ""
            play.append({"role": "user", "content": other + MORE.format(quotes=QUOTES)})
        play.append({"role": "assistant", "content": " ".join(map(str, random.sample(every, QUOTES)))})
    return play
