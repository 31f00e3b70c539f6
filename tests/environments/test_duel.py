"""Self-play of board games: turns, ends, illegal moves, zero-sum rewards; a run of it with a tiny model."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.talking import talking_folder
from vigneron import api
from vigneron.data import nim
from vigneron.data.board_games import reachable, solve
from vigneron.data.nim import Nim
from vigneron.data.tasks import load_task
from vigneron.environments.duel import Duel, NimDuel, TicTacToeDuel
from vigneron.environments.game import Round, checked_round
from vigneron.errors import UserError
from vigneron.recipe import load_config


def played(duel: Duel, texts: list[str]) -> list[Round]:
    """The rounds, each turn by the role whose turn it is."""
    rounds = [checked_round(duel.start(), duel.roles)]
    for text in texts:
        (role,) = rounds[-1].to_play
        rounds.append(checked_round(duel.play({role: text}), duel.roles))
    return rounds


def test_a_game_of_nim() -> None:
    start, after, last = played(NimDuel({"piles": [1, 2]}, seed=0), ["2 2", "1 1"])
    assert (start.to_play, list(start.messages)) == (("first",), ["first"])
    assert "pile 1 has 1, pile 2 has 2" in start.messages["first"][0]["content"]
    assert after.to_play == ("second",)
    assert "pile 1 has 1, pile 2 has 0" in after.messages["second"][0]["content"]
    assert last.to_play == ()
    assert last.rewards == {"first": -1.0, "second": 1.0}
    assert last.log == {"second_won": 1.0}


def test_a_row_may_break_the_game_off_after_its_first_move() -> None:
    row = {"piles": [1, 2], "most_moves": 1}
    last = played(NimDuel(row, seed=0), ["2 2"])[-1]
    assert (last.to_play, last.rewards, last.log) == ((), {}, {})
    assert played(NimDuel(row, seed=0), ["3 1"])[-1].rewards == {"first": -1.0, "second": 1.0}
    assert played(NimDuel({**row, "piles": [1]}, seed=0), ["1 1"])[-1].rewards == {"first": 1.0, "second": -1.0}


def test_with_misere_who_takes_the_last_stone_loses() -> None:
    last = played(NimDuel({"piles": [1]}, seed=0, misere=True), ["1 1"])[-1]
    assert last.rewards == {"first": -1.0, "second": 1.0}


@pytest.mark.parametrize("text", ["", "3 1", "1 5", "1 0", "take one"])
def test_an_illegal_move_loses(text: str) -> None:
    last = played(NimDuel({"piles": [1, 2]}, seed=0), ["2 1", text])[-1]
    assert last.rewards == {"second": -1.0, "first": 1.0}
    assert (last.to_play, last.log) == ((), {"second_illegal": 1.0})


def test_a_draw_and_a_win_at_tic_tac_toe() -> None:
    draw = played(TicTacToeDuel({}, seed=0), list("123546879"))[-1]
    assert draw.rewards == {"first": 0.0, "second": 0.0}
    won = played(TicTacToeDuel({}, seed=0), list("14253"))[-1]
    assert won.rewards == {"first": 1.0, "second": -1.0}


@given(st.lists(st.text() | st.sampled_from(["1 1", "2 1", "3 1", "5", "1"]), max_size=12), st.booleans())
def test_no_text_breaks_a_game_and_all_rewards_sum_to_zero(texts: list[str], board: bool) -> None:
    duel = TicTacToeDuel({}, seed=0) if board else NimDuel({"piles": [2, 1, 2]}, seed=0)
    current = checked_round(duel.start(), duel.roles)
    for text in texts:
        if not current.to_play:
            assert set(current.rewards) == set(duel.roles)
            break
        current = checked_round(duel.play({current.to_play[0]: text}), duel.roles)
        assert sum(current.rewards.values()) == 0


@pytest.mark.parametrize("piles", [None, "123", [], [0], ["1"], [100]])
def test_piles_that_are_no_game_are_named(piles: Any) -> None:
    with pytest.raises(UserError, match="`piles`"):
        NimDuel({"piles": piles}, seed=0)


def test_the_task_has_starts_that_differ_by_more_than_their_order() -> None:
    rows = {split: load_task("nim").rows(split) for split in nim.SHARES}
    sets = {split: {tuple(sorted(row["piles"])) for row in part} for split, part in rows.items()}
    assert sum(map(len, rows.values())) == 125
    assert sum(map(len, sets.values())) == len(set().union(*sets.values())) == 35
    solved = solve(Nim((5, 5, 5))).best
    for row in (row for part in rows.values() for row in part):
        assert Nim().read_move(row["answer"]) in solved[tuple(row["piles"])]


def test_warm_up_games_are_legal_and_those_of_one_side() -> None:
    game = Nim((5, 5, 5))
    positions = {game.render(position): position for position in reachable(game)}
    for row in load_task("nim-warmup").rows("train"):
        stones = sum(row["piles"])
        for asked, answer in zip(row["messages"][::2], row["messages"][1::2], strict=True):
            position = positions[asked["content"]]
            assert game.read_move(answer["content"]) in game.moves(position)
            assert sum(position) <= stones
            stones = sum(position) - 2 if len(row["messages"]) > 2 else 0  # at least one stone each since the last turn


@pytest.mark.slow
def test_the_recipes_train(tmp_path: Path) -> None:
    model = {"name": str(talking_folder(tmp_path / "model")), "device": "cpu"}
    tiny = {"model": model, "steps": 1, "prompts_per_step": 2, "max_new_tokens": 4, "save_every": 0, "eval_every": 0}
    environment = load_config("self-play-nim", keys={"model": model}).environment
    assert environment is not None
    shorter = {**environment.model_dump(by_alias=True), "max_turns": 2, "max_reply_tokens": 200}
    api.train("sft-nim", runs=tmp_path / "runs", name="warm", **tiny)
    run = api.train("self-play-nim", runs=tmp_path / "runs", **{**tiny, "group_size": 2, "environment": shorter})
    (record,) = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert record["roles/first/reward"] == -1.0  # a random model's first move is no legal one
