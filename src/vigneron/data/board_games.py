"""Games of two players with full knowledge, solved exactly: a position's value, the moves that keep it, and how many
of a player's moves do.

A position is a value that can be hashed, seen by the player whose turn it is. Values are for that player: 1 is a win,
0 a draw, -1 a loss, with best play of both.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any, Generic, Protocol, TypeVar

from vigneron.data.prompts import Row

P = TypeVar("P", bound=Hashable)
M = TypeVar("M", bound=Hashable)


class BoardGame(Protocol[P, M]):
    """The rules of a game."""

    @property
    def start(self) -> P: ...

    def moves(self, position: P) -> Sequence[M]:
        """The legal moves; none if the game is over."""

    def play(self, position: P, move: M) -> P:
        """The position after a legal move, seen by the other player."""

    def outcome(self, position: P) -> int:
        """The value of a position in which the game is over."""

    def render(self, position: P) -> str:
        """The position as text, with what to answer."""

    def read_move(self, text: str) -> M | None:
        """The move that a text is, legal or not; None if it is none. Never raises."""

    def write_move(self, move: M) -> str:
        """The text of a move, which `read_move` reads."""


@dataclass(frozen=True)
class Solution(Generic[P, M]):
    """Every position that can be reached, with its value and the moves that keep it."""

    game: BoardGame[P, M]
    values: dict[P, int]
    """In the order in which they are reached, breadth first."""
    best: dict[P, tuple[M, ...]]
    """The moves that keep the value, for positions in which the game goes on."""

    def is_decisive(self, position: P) -> bool:
        """Whether a legal move exists that loses something."""
        return len(self.best[position]) < len(self.game.moves(position))


def reachable(game: BoardGame[P, M]) -> list[P]:
    """All positions that play can reach from the start, breadth first."""
    found = {game.start: None}
    queue = [game.start]
    for position in queue:
        for move in game.moves(position):
            after = game.play(position, move)
            if after not in found:
                found[after] = None
                queue.append(after)
    return queue


def solve(game: BoardGame[P, M]) -> Solution[P, M]:
    """Negamax: v(p) = max over moves m of -v(p after m); the outcome where the game is over."""

    @cache
    def value(position: P) -> int:
        after = [game.play(position, move) for move in game.moves(position)]
        return max(-value(each) for each in after) if after else game.outcome(position)

    positions = reachable(game)
    best = {
        position: tuple(move for move in moves if -value(game.play(position, move)) == value(position))
        for position in positions
        if (moves := game.moves(position))
    }
    return Solution(game, {position: value(position) for position in positions}, best)


@dataclass(frozen=True)
class Play:
    """How a player's moves compare with best play, over all positions that can be reached, each counted once."""

    optimal: float
    """Share of positions in which the move keeps the value."""
    decisive: float
    """The same over positions in which some legal move does not."""
    illegal: float
    """Share of positions in which the answer is no legal move. Such an answer is not optimal."""


def judge_player(solution: Solution[P, M], answer: Callable[[P], str]) -> Play:
    """Asks for a text in every position of the solution in which the game goes on."""
    return judge_answers(solution, [answer(position) for position in solution.best])


def judge_answers(solution: Solution[P, M], answers: Sequence[str]) -> Play:
    """The same for texts in the order of `solution.best`."""
    moves = {p: solution.game.read_move(text) for p, text in zip(solution.best, answers, strict=True)}
    kept = {position: move in solution.best[position] for position, move in moves.items()}
    decisive = [kept[position] for position in kept if solution.is_decisive(position)]
    legal = [move in solution.game.moves(position) for position, move in moves.items()]
    return Play(
        optimal=sum(kept.values()) / len(kept),
        decisive=sum(decisive) / len(decisive) if decisive else 1.0,
        illegal=1 - sum(legal) / len(legal),
    )


def position_rows(solution: Solution[P, M]) -> list[Row]:
    """A row for every position of the solution in which the game goes on, in its order."""
    game = solution.game

    def row(position: P) -> Row:
        best: list[Any] = [game.write_move(move) for move in solution.best[position]]
        value, decisive = solution.values[position], solution.is_decisive(position)
        prompt = [{"role": "user", "content": game.render(position)}]
        return {"prompt": prompt, "answer": best[0], "best": best, "value": value, "decisive": decisive}

    return [row(position) for position in solution.best]


def random_game(game: BoardGame[P, M], random: Random) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A game of random legal moves, as the first and as the second player see it: what they read, and their moves."""
    seats: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
    position, turn = game.start, 0
    while moves := game.moves(position):
        move = random.choice(moves)
        seats[turn % 2].append({"role": "user", "content": game.render(position)})
        seats[turn % 2].append({"role": "assistant", "content": game.write_move(move)})
        position, turn = game.play(position, move), turn + 1
    return seats
