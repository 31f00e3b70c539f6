"""Large sums: 2 to 5 terms of 3 or 4 digits, with a calculator (`sums-tool`) or without (`sums`)."""

from random import Random
from typing import Any

from vigneron.data.ladder import ladder_row
from vigneron.data.prompts import Row

LEVELS = (2, 3, 4, 5)
SPLITS = {"train": 300, "tuning": 20, "held_out": 40}
"""Of each level."""
TERMS = (100, 9999)
PROMPT = "What is {terms}? Answer with the number only."
TOOL_PROMPT = "What is {terms}? Write calc(...) to use a calculator. Answer with the number only."
ALONE = 0.5
"""How often a warm-up play answers without the calculator."""


def generate(seed: int = 0) -> list[Row]:
    """Rows of every level and split. No two have the same terms, in whichever order."""
    random, seen, rows = Random(f"sums {seed}"), set[tuple[int, ...]](), list[Row]()
    for level in LEVELS:
        for split, count in SPLITS.items():
            while count:
                terms = [random.randint(*TERMS) for _ in range(level)]
                if (key := tuple(sorted(terms))) not in seen:
                    seen.add(key)
                    rows.append(ladder_row(terms, split))
                    count -= 1
    return rows


def warm_up(seed: int = 0) -> list[Row]:
    """The same rows, those to train on with a `play`: half of them call the calculator, half answer at once."""
    random = Random(f"sums play {seed}")
    return [{**row, "play": play(row, random)} if row["split"] == "train" else row for row in generate(seed)]


def play(row: Row, random: Random) -> list[dict[str, Any]]:
    """The messages after the prompt. What the calculator answers is the result."""
    answer = {"role": "assistant", "content": row["result"]}
    if random.random() < ALONE:
        return [answer]
    called = {"role": "assistant", "content": f"calc({row['terms']})"}
    return [called, {"role": "user", "content": row["result"]}, answer]
