"""Self-play of board games: two roles move in turns, each reads the position from its own side.

    data: {task: nim}
    environment: {kind: game, class: "vigneron.environments.duel:NimDuel", max_turns: 12}
    reward: {kind: environment}

Who wins earns 1 and who loses -1, a draw 0 for both. A turn that is no legal move loses the game. A row's `most_moves`
breaks the game off after so many, which nobody wins: 1 for rows that judge the first move alone.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from vigneron.data.board_games import BoardGame
from vigneron.data.nim import Nim
from vigneron.data.prompts import Row
from vigneron.data.tic_tac_toe import TicTacToe
from vigneron.environments.columns import needed
from vigneron.environments.game import Round
from vigneron.errors import UserError


class Duel:
    """A game between two roles, from its start or another position."""

    roles: Sequence[str] = ("first", "second")

    def __init__(self, game: BoardGame[Any, Any], position: Any = None, most_moves: int | None = None) -> None:
        self.game, self.position = game, game.start if position is None else position
        self.most_moves, self.played = most_moves, 0

    def start(self) -> Round:
        return Round(["first"], {"first": self.game.render(self.position)})

    def play(self, turns: Mapping[str, str]) -> Round:
        ((role, text),) = turns.items()
        other = "second" if role == "first" else "first"
        move = self.game.read_move(text)
        if move not in self.game.moves(self.position):
            return Round(rewards={role: -1.0, other: 1.0}, log={f"{role}_illegal": 1.0})
        self.position, self.played = self.game.play(self.position, move), self.played + 1
        if self.game.moves(self.position):
            if self.played == self.most_moves:
                return Round()
            return Round([other], {other: self.game.render(self.position)})
        value = float(self.game.outcome(self.position))  # for `other`, whose turn it would be
        return Round(rewards={role: 0.0 - value, other: value}, log={f"{role}_won": float(value < 0)})


class NimDuel(Duel):
    """Nim, from the row's `piles`, of which some may be empty."""

    def __init__(self, row: Row, seed: int, misere: bool = False) -> None:
        piles: list[Any] = needed(row, "piles", list)
        try:
            Nim(tuple(stones for stones in piles if stones != 0))
        except (TypeError, ValueError) as error:
            raise UserError(f"the column `piles`: {error}") from error
        super().__init__(Nim(misere=misere), tuple(piles), row.get("most_moves"))


class TicTacToeDuel(Duel):
    """Tic-tac-toe, from the empty board."""

    def __init__(self, row: Row, seed: int) -> None:
        super().__init__(TicTacToe())
