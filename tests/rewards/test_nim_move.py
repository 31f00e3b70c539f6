"""First moves at Nim, held against the solver in every position; the rows with all positions."""

from typing import Any

import pytest

from vigneron.data.board_games import judge_answers, judge_player, solve
from vigneron.data.nim import Nim
from vigneron.data.tasks import load_task
from vigneron.environments.duel import NimDuel
from vigneron.rewards.checkers import check_texts

SOLUTION = solve(Nim((5, 5, 5)))
GAME = SOLUTION.game
ROWS = load_task("nim-positions").rows("held_out")


def checked(texts: list[Any], rows: list[Any], **columns: Any) -> tuple[bool | None, ...]:
    given = {"piles": [row["piles"] for row in rows], **columns}
    return check_texts("nim_optimal", [""] * len(texts), texts, given)


def test_every_position_in_which_the_game_goes_on_is_held_out() -> None:
    assert sorted(tuple(row["piles"]) for row in ROWS) == sorted(SOLUTION.best)
    for row in ROWS:
        assert row["prompt"] == [{"role": "user", "content": GAME.render(tuple(row["piles"]))}]
        assert NimDuel(row, 0).start().messages == {"first": GAME.render(tuple(row["piles"]))}
    for split in ("train", "tuning"):
        assert load_task("nim-positions").rows(split) == load_task("nim").rows(split)
    assert load_task("nim-positions-warmup").rows("held_out") == ROWS


@pytest.mark.parametrize("move", ["1 1", "2 1", "2 4", "3 5", "03 5.", "no", ""])
def test_the_checker_agrees_with_the_solver(move: str) -> None:
    by_solver = judge_player(SOLUTION, lambda position: move).optimal
    verdicts = checked([move] * len(ROWS), ROWS)
    assert sum(map(bool, verdicts)) / len(ROWS) == pytest.approx(by_solver)


def test_every_best_move_and_no_other_is_accepted() -> None:
    for row in ROWS:
        position = tuple(row["piles"])
        moves = list(GAME.moves(position))
        verdicts = checked([GAME.write_move(move) for move in moves], [row] * len(moves))
        assert verdicts == tuple(move in SOLUTION.best[position] for move in moves)
    assert judge_answers(SOLUTION, [GAME.write_move(best[0]) for best in SOLUTION.best.values()]).optimal == 1.0
    assert all(checked([row["answer"] for row in ROWS], ROWS))


def test_a_random_legal_move_keeps_the_value_in_three_of_ten_positions() -> None:
    """The figure of the recipe self-play-nim."""
    shares = [len(best) / len(GAME.moves(position)) for position, best in SOLUTION.best.items()]
    assert sum(shares) / len(shares) == pytest.approx(0.297, abs=0.001)


def test_the_first_move_of_who_moves_first_is_checked() -> None:
    talk = [{"role": "assistant", "content": text} for text in ("2 1", "5 5")]
    between = [talk[0], {"role": "user", "content": "1 1"}, talk[1]]
    assert checked([between, between], [{"piles": [1, 2]}] * 2, role=["first", "second"]) == (True, None)
    assert checked([[], talk[1:]], [{"piles": [1, 2]}] * 2, role=["first"] * 2) == (False, False)
