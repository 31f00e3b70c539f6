"""Nim: players take turns to take one or more stones of one pile. Taking the last one wins; with `misere` it loses."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate, combinations_with_replacement, permutations, product
from operator import xor
from random import Random

from vigneron.data.board_games import random_game
from vigneron.data.prompts import Row

Piles = tuple[int, ...]
Take = tuple[int, int]
"""The pile, from 1, and how many stones."""


@dataclass(frozen=True)
class Nim:
    start: Piles = (3, 4, 5)
    misere: bool = False

    def __post_init__(self) -> None:
        if not self.start or not all(0 < stones <= 99 for stones in self.start) or len(self.start) > 9:
            raise ValueError(f"Nim has 1 to 9 piles of 1 to 99 stones, not {self.start}")

    def moves(self, position: Piles) -> Sequence[Take]:
        return [(pile, take) for pile, stones in enumerate(position, 1) for take in range(1, stones + 1)]

    def play(self, position: Piles, move: Take) -> Piles:
        pile, take = move
        return (*position[: pile - 1], position[pile - 1] - take, *position[pile:])

    def outcome(self, position: Piles) -> int:
        """No stone is left: the other player took the last one."""
        return 1 if self.misere else -1

    def render(self, position: Piles) -> str:
        piles = ", ".join(f"pile {pile} has {stones}" for pile, stones in enumerate(position, 1))
        last = "loses" if self.misere else "wins"
        return (
            f"Nim: {piles}. Take one or more stones of one pile; who takes the last stone {last}.\n"
            "Answer with the pile and the number of stones, as: 1 2"
        )

    def read_move(self, text: str) -> Take | None:
        parts = text[:100].strip().removesuffix(".").split(" ")
        if len(parts) != 2 or not all(part.isascii() and part.isdigit() and len(part) <= 2 for part in parts):
            return None
        return int(parts[0]), int(parts[1])

    def write_move(self, move: Take) -> str:
        return f"{move[0]} {move[1]}"


def nim_value(position: Piles, misere: bool = False) -> int:
    """Bouton's theorem (1901): who moves wins if the xor of the piles is not 0; with `misere` and no pile above 1, if
    the number of stones is even."""
    if misere and max(position, default=0) <= 1:
        return 1 if sum(position) % 2 == 0 else -1
    return 1 if reduce(xor, position, 0) else -1


STONES, PILES = 5, 3
"""Of the task `nim`: at most so many stones in each of three piles."""
SHARES = {"train": 0.7, "tuning": 0.1, "held_out": 0.2}
"""Each split's share of the starts."""


def generate(seed: int = 0) -> list[Row]:
    """Starts of the game. Those that are equal but for the order of their piles are in one split."""
    random = Random(f"nim {seed}")
    sets = list(combinations_with_replacement(range(1, STONES + 1), PILES))
    random.shuffle(sets)
    ends = [round(share * len(sets)) for share in accumulate(SHARES.values())]
    rows: list[Row] = []
    for split, first, end in zip(SHARES, [0, *ends], ends, strict=False):
        rows += [nim_row(piles, split) for each in sets[first:end] for piles in sorted(set(permutations(each)))]
    return rows


def nim_row(piles: Sequence[int], split: str) -> Row:
    nim, position = Nim(), tuple(piles)
    moves = nim.moves(position)
    best = next((move for move in moves if _wins(piles, move)), moves[0])
    return {"piles": list(piles), "position": nim.render(position), "best": nim.write_move(best), "split": split}


def _wins(piles: Sequence[int], move: Take) -> bool:
    return nim_value(Nim().play(tuple(piles), move)) == -1


def with_all_positions(rows: Sequence[Row]) -> list[Row]:
    """The rows with every position in which the game goes on as the held-out part: `eval/accuracy` then says how far
    first moves are from best play. Starts of the training part are among them."""
    starts = [row for row in rows if row["split"] != "held_out"]
    positions = product(range(STONES + 1), repeat=PILES)
    return [*starts, *(nim_row(piles, "held_out") for piles in positions if any(piles))]


def warm_up(seed: int = 0, games: int = 4) -> list[Row]:
    """The same rows; of each start to train on `games` games of random legal moves, by turns as either player."""
    random, rows = Random(f"nim play {seed}"), list[Row]()
    for row in generate(seed):
        if row["split"] != "train":
            rows.append(row)
            continue
        for number in range(games):
            seat = random_game(Nim(tuple(row["piles"])), random)[number % 2]
            if seat:
                rows.append({**row, "position": seat[0]["content"], "play": seat[1:]})
    return rows
