"""The guessing game: its rules, its rows, and plays to warm a model up with.

The range of a row has a fixed width and begins anywhere from 1 on; no two splits have a range in common. So a held-out
game is won by narrowing the range down, not by knowing which numbers were asked for.
"""

from random import Random
from typing import Any

from vigneron.data.prompts import Row

WIDTHS = (8, 16, 32)
LARGEST = 99
SPLITS = {"train": 500, "tuning": 40, "held_out": 100}
SHARES = {"train": 0.7, "tuning": 0.1, "held_out": 0.2}
"""Each split's share of the ranges."""
PROMPT = "I think of a whole number from {lowest} to {highest}. You have {turns} tries. Answer with a number only."
CARELESS = 0.3
"""How often a warm-up play forgets what it was told, and guesses any number of the range."""


def read_guess(text: str) -> int | None:
    """The guess, if the text has one number of at most 9 digits and nothing else, but for a full stop. Else None."""
    text = text.strip().removesuffix(".")
    return int(text) if len(text) <= 9 and text.isascii() and text.isdigit() else None


def hint(row: Row, guess: int | None) -> str:
    """What a wrong guess is answered with."""
    if guess is None or not row["lowest"] <= guess <= row["highest"]:
        return f"Answer with a number from {row['lowest']} to {row['highest']} only."
    return f"Higher than {guess}." if guess < row["secret"] else f"Lower than {guess}."


def reward(row: Row, used: int) -> float:
    """1 for the first guess, an equal step less for each further one."""
    return (row["turns"] - used + 1) / row["turns"]


def turns_of(width: int) -> int:
    """Two more than binary search needs at worst."""
    return width.bit_length() + 2


def best_mean_reward(width: int) -> float:
    """The mean reward of binary search over all numbers of a range: 2ᵏ⁻¹ of them are found by the k-th guess."""
    turns, left, total = turns_of(width), width, 0.0
    for used in range(1, turns + 1):
        found = min(left, 2 ** (used - 1))
        total += found * reward({"turns": turns}, used)
        left -= found
    return total / width


def generate(width: int, seed: int = 0) -> list[Row]:
    """Games of every split; none occurs twice."""
    random = Random(f"guess {width} {seed}")
    starts = list(range(1, LARGEST - width + 2))
    random.shuffle(starts)
    rows: list[Row] = []
    for split, count in SPLITS.items():
        size = round(SHARES[split] * (LARGEST - width + 1))
        own, starts = starts[:size], starts[size:]
        games = [(start, start + above) for start in own for above in range(width)]
        rows += [guess_row(start, width, secret, split) for start, secret in random.sample(games, count)]
    return rows


def guess_row(lowest: int, width: int, secret: int, split: str) -> Row:
    highest = lowest + width - 1
    return {"lowest": lowest, "highest": highest, "turns": turns_of(width), "secret": secret, "split": split}


def warm_up(width: int, seed: int = 0) -> list[Row]:
    """The same rows, those to train on with a `play`: random guesses from what the hints leave, sometimes from all."""
    random = Random(f"guess play {width} {seed}")
    return [
        {**row, "play": careless_play(row, random)} if row["split"] == "train" else row for row in generate(width, seed)
    ]


def careless_play(row: Row, random: Random) -> list[dict[str, Any]]:
    """The messages after the prompt, up to the last guess."""
    play: list[dict[str, Any]] = []
    lowest, highest = row["lowest"], row["highest"]
    for used in range(1, row["turns"] + 1):
        careless = random.random() < CARELESS
        guess = random.randint(row["lowest"], row["highest"]) if careless else random.randint(lowest, highest)
        play.append({"role": "assistant", "content": str(guess)})
        if guess == row["secret"] or used == row["turns"]:
            break
        play.append({"role": "user", "content": hint(row, guess)})
        if guess < row["secret"]:
            lowest = max(lowest, guess + 1)
        else:
            highest = min(highest, guess - 1)
    return play
