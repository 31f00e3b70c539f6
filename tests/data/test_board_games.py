"""Nim and tic-tac-toe: the solver against theory, published counts and a search without memory; players' moves."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vigneron.data.board_games import judge_answers, judge_player, position_rows, reachable, solve
from vigneron.data.nim import Nim, Piles, nim_value
from vigneron.data.tic_tac_toe import TicTacToe, lost


def wins(piles: list[int], misere: bool) -> bool:
    """Whether who moves wins at Nim, by trying everything."""
    if not any(piles):
        return misere
    return any(
        not wins([*piles[:at], left, *piles[at + 1 :]], misere)
        for at, stones in enumerate(piles)
        for left in range(stones)
    )


@pytest.mark.parametrize("misere", [False, True])
@pytest.mark.parametrize("start", [(1,), (5,), (1, 1), (2, 3), (1, 2, 3), (3, 3, 2)])
def test_nims_values_are_those_of_trying_everything(start: Piles, misere: bool) -> None:
    for position, value in solve(Nim(start, misere)).values.items():
        assert value == (1 if wins(list(position), misere) else -1)


@pytest.mark.parametrize("misere", [False, True])
@pytest.mark.parametrize("start", [(3, 4, 5), (1, 3, 5, 7), (7, 7)])
def test_nims_values_and_best_moves_are_boutons(start: Piles, misere: bool) -> None:
    game = Nim(start, misere)
    solution = solve(game)
    assert all(value == nim_value(position, misere) for position, value in solution.values.items())
    for position, best in solution.best.items():
        after = {move: nim_value(game.play(position, move), misere) for move in game.moves(position)}
        winning = {move for move, value in after.items() if value == -1}
        assert set(best) == (winning or set(after))  # all moves are equal where all lose


def test_nim_reaches_every_smaller_position() -> None:
    assert sorted(reachable(Nim((2, 3)))) == [(a, b) for a in range(3) for b in range(4)]


def test_tic_tac_toe_has_the_known_numbers_of_positions() -> None:
    """5,478 positions can be reached, 958 of them ended: 626 won by the first player, 316 by the second, 16 draws."""
    solution = solve(TicTacToe())
    ended = [position for position in solution.values if position not in solution.best]
    assert (len(solution.values), len(ended)) == (5478, 958)
    by_first = sum(lost(position) and position.count(".") % 2 == 0 for position in ended)
    by_second = sum(lost(position) and position.count(".") % 2 == 1 for position in ended)
    assert (by_first, by_second, len(ended) - by_first - by_second) == (626, 316, 16)
    assert solution.values["." * 9] == 0
    assert len(solution.best["." * 9]) == 9  # every first move draws
    assert solution.best["....O...."] == (1, 3, 7, 9)  # against the centre, only a corner


def test_a_win_is_taken_and_a_loss_is_stopped() -> None:
    best = solve(TicTacToe()).best
    assert best["XX.OO...."] == (3,)
    assert best["OO..X...."] == (3,)


def test_best_play_is_optimal_and_its_opposite_is_not() -> None:
    solution = solve(Nim((3, 4, 5)))
    game = solution.game
    best = judge_player(solution, lambda position: game.write_move(solution.best[position][0]))
    assert (best.optimal, best.decisive, best.illegal) == (1.0, 1.0, 0.0)

    def worst(position: Piles) -> str:
        return game.write_move(next((m for m in game.moves(position) if m not in solution.best[position]), (1, 99)))

    count = sum(map(solution.is_decisive, solution.best))
    play = judge_player(solution, worst)
    assert (play.optimal, play.decisive) == (0.0, 0.0)
    assert play.illegal == pytest.approx(1 - count / len(solution.best))


def test_shares_worked_out_by_hand() -> None:
    """Piles (1, 2): five positions go on. (1,2): 2 1 wins, the others lose. (0,2): 2 2 wins. (1,1): both lose. (1,0),
    (0,1): one move. `1 1` keeps the value in (1,1) and (1,0), is wrong in (1,2) and illegal in the two others."""
    solution = solve(Nim((1, 2)))
    play = judge_player(solution, lambda position: "1 1")
    assert len(solution.best) == 5
    assert play.optimal == pytest.approx(2 / 5)
    assert play.decisive == 0.0  # (1,2) and (0,2)
    assert play.illegal == pytest.approx(2 / 5)


@pytest.mark.parametrize("game", [Nim((2, 3)), Nim((1, 1, 2), misere=True), TicTacToe()])
def test_rows_have_a_prompt_and_the_best_moves_of_every_position(game: Any) -> None:
    solution = solve(game)
    rows = position_rows(solution)
    assert len({row["prompt"][0]["content"] for row in rows}) == len(rows) == len(solution.best)
    assert judge_answers(solution, [row["answer"] for row in rows]).optimal == 1.0
    for position, row in zip(solution.best, rows, strict=True):
        assert tuple(map(game.read_move, row["best"])) == solution.best[position]
        assert row["value"] == solution.values[position]
        assert all(game.read_move(game.write_move(move)) == move for move in game.moves(position))


def test_positions_as_text() -> None:
    assert Nim((3, 4)).render((3, 0)).startswith("Nim: pile 1 has 3, pile 2 has 0.")
    assert "loses" in Nim((3,), misere=True).render((3,))
    assert "1 X 3\n4 O 6\n7 8 9" in TicTacToe().render(".X..O....")


@given(st.text())
def test_any_text_is_a_move_or_none(text: str) -> None:
    take, square = Nim().read_move(text), TicTacToe().read_move(text)
    assert take is None or len(take) == 2
    assert square is None or square in range(1, 10)


@pytest.mark.parametrize("text", ["1", "1 2 3", "1  2", "-1 2", "1,2", "a b", "100 1", "1\n2", ""])
def test_what_is_no_take(text: str) -> None:
    assert Nim().read_move(text) is None


@pytest.mark.parametrize("text", ["", "0", "10", "1 2", "x", "²", "५"])
def test_what_is_no_square(text: str) -> None:
    assert TicTacToe().read_move(text) is None


@pytest.mark.parametrize("start", [(), (0, 1), (100,), (1,) * 10])
def test_piles_that_are_no_game(start: Piles) -> None:
    with pytest.raises(ValueError, match="1 to 9 piles"):
        Nim(start)
