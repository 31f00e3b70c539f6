"""Tic-tac-toe, on nine squares that are numbered from 1. Whose turn it is has X, in every position that they see."""

from collections.abc import Sequence
from dataclasses import dataclass

Board = str
"""Nine marks: X of the player whose turn it is, O of the other, `.` for free."""
LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
OTHER_SIDE = str.maketrans("XO", "OX")


@dataclass(frozen=True)
class TicTacToe:
    start: Board = "." * 9

    def moves(self, position: Board) -> Sequence[int]:
        return [] if lost(position) else [square for square, mark in enumerate(position, 1) if mark == "."]

    def play(self, position: Board, move: int) -> Board:
        return f"{position[: move - 1]}X{position[move:]}".translate(OTHER_SIDE)

    def outcome(self, position: Board) -> int:
        return -1 if lost(position) else 0

    def render(self, position: Board) -> str:
        squares = [mark if mark != "." else str(square) for square, mark in enumerate(position, 1)]
        lines = "\n".join(" ".join(squares[first : first + 3]) for first in (0, 3, 6))
        return f"Tic-tac-toe. You are X.\n{lines}\nAnswer with the number of a free square."

    def read_move(self, text: str) -> int | None:
        text = text[:100].strip().removesuffix(".")
        return int(text) if len(text) == 1 and text in "123456789" else None

    def write_move(self, move: int) -> str:
        return str(move)


def lost(position: Board) -> bool:
    """Whether the other player has three in a line."""
    return any(all(position[square] == "O" for square in line) for line in LINES)
