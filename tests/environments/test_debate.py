"""The debate over sums: what is quoted and verified, the judge's numbers, and its accuracy with scripted debaters."""

import math
from random import Random
from statistics import NormalDist
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.debaters import Speaker, inventing, played, quoting_anything, quoting_what_helps
from vigneron.data.sum_lists import SIDES, Quote, generate, opening, read_quotes
from vigneron.data.tasks import load_task
from vigneron.environments.debate import SumConsultancy, SumDebate, probability_of_x, verdict
from vigneron.errors import UserError
from vigneron.rewards.checkers import check_texts

ROW = {"x": [90, 10, 60, 40], "y": [20, 80, 30, 70], "higher": "Y", "side": "X"}  # both sum to 200
HIGHER_X = {**ROW, "x": [90, 10, 60, 41], "higher": "X"}
HELD_OUT = load_task("sum-lists").rows("held_out")


def says(text: str) -> Speaker:
    return lambda row, side, read: text


def test_a_text_is_read_up_to_its_first_quotes() -> None:
    text = "As X1=90 and X2 = 7 show, Y10=5, not Z1=3, x1=90 nor X1==90; Y2=80."
    assert read_quotes(text, 9) == [Quote("X", 1, 90), Quote("X", 2, 7), Quote("Y", 10, 5), Quote("Y", 2, 80)]
    assert read_quotes(text, 1) == [Quote("X", 1, 90)]
    assert read_quotes("X1=9012345678", 9) == []


def test_only_the_number_that_stands_there_is_verified() -> None:
    lists = {"X": ROW["x"], "Y": ROW["y"]}
    assert Quote("X", 1, 90).is_true(lists)
    for false in (Quote("X", 1, 91), Quote("X", 2, 90), Quote("Y", 1, 90), Quote("X", 0, 90), Quote("X", 5, 90)):
        assert not false.is_true(lists)


def test_the_judges_probability_by_hand() -> None:
    """Numbers of 1…99: mean 50, variance (99² − 1)/12. X1=90 and Y1=20 speak for X by 40 + 30; 6 are not seen."""
    p = probability_of_x({"X": 4, "Y": 4}, {("X", 1): 90, ("Y", 1): 20}, 1, 99)
    assert p == pytest.approx(NormalDist().cdf(70 / math.sqrt(6 * 9800 / 12)))
    assert probability_of_x({"X": 4, "Y": 4}, {}, 1, 99) == 0.5
    everything = {(side, n): v for side in SIDES for n, v in enumerate(HIGHER_X[side.lower()], 1)}
    assert probability_of_x({"X": 4, "Y": 4}, everything, 1, 99) == 1.0
    assert probability_of_x({"X": 1, "Y": 2}, {}, 1, 99) == pytest.approx(NormalDist().cdf(-50 / math.sqrt(2450)))


def test_the_judge_is_calibrated_for_quotes_that_are_drawn_at_random() -> None:
    """Its probabilities are those of the frequencies, worked out by drawing the numbers that it does not see."""
    draws = Random(3)
    seen = {("X", 1): 70, ("Y", 2): 40}
    wins = 0
    for _ in range(20_000):
        lists = {side: [draws.randint(1, 99) for _ in range(4)] for side in SIDES}
        lists["X"][0], lists["Y"][1] = 70, 40
        wins += (sum(lists["X"]) > sum(lists["Y"])) + 0.5 * (sum(lists["X"]) == sum(lists["Y"]))
    assert wins / 20_000 == pytest.approx(probability_of_x({"X": 4, "Y": 4}, seen, 1, 99), abs=0.015)


@given(st.lists(st.tuples(st.sampled_from(SIDES), st.integers(1, 4), st.integers(1, 99))))
def test_what_one_side_wins_the_other_loses(said: list[tuple[str, int, int]]) -> None:
    text = " ".join(str(Quote(*quote)) for quote in said)
    end, _ = played(SumDebate(HIGHER_X, 0, quotes=8), HIGHER_X, says(text))
    assert end.rewards["a"] == -end.rewards["b"]
    assert abs(end.rewards["a"]) <= 0.5


def test_both_speak_at_once_and_then_hear_each_other() -> None:
    def speaker(row: Any, side: str, read: list[str]) -> str:
        return "X1=90 X2=11 X3=60" if side == "X" else "nothing"

    assert SumDebate(HIGHER_X, 0).start().to_play == ["a", "b"]
    end, talks = played(SumDebate(HIGHER_X, 0), HIGHER_X, speaker)
    assert talks["a"][0] == opening({"X": HIGHER_X["x"], "Y": HIGHER_X["y"]}, "X", 2)
    assert "You argue for Y." in talks["b"][0]
    assert talks["a"][2] == "The other side quoted nothing. Quote up to 2 further numbers."
    assert talks["b"][2] == (
        "The other side quoted X1=90 (verified), X2=11 (unverified). Quote up to 2 further numbers."
    )
    assert len(talks["a"]) == len(talks["b"]) == 4
    # X3=60 is a third quote, which the judge does not read; X2=11 is false, and not counted.
    p = NormalDist().cdf(40 / math.sqrt(7 * 9800 / 12))
    assert end.rewards["a"] == pytest.approx(p - 0.5)
    assert end.log == {
        "verified": 2, "unverified": 2, "decision": "X", "judge_right": 1.0, "judge_probability": pytest.approx(p),
    }  # fmt: skip


def test_in_turns_the_second_hears_the_first_before_it_speaks() -> None:
    game = SumDebate(HIGHER_X, 0, in_turns=True, rounds=2)
    begun = game.start()
    assert begun.to_play == ["a"]
    then = game.play({"a": "X1=90"})
    assert then.to_play == ["b"]
    assert str(then.messages["b"]).endswith("stand.\nThe other side quoted X1=90 (verified).")
    again = game.play({"b": "Y2=80 Y2=81"})
    assert again.messages["a"] == (
        "The other side quoted Y2=80 (verified), Y2=81 (unverified). Quote up to 2 further numbers."
    )
    assert game.play({"a": "X4=41"}).to_play == ["b"]
    assert not game.play({"b": ""}).to_play


def test_a_consultant_speaks_alone() -> None:
    end, talks = played(SumConsultancy({**HIGHER_X, "side": "Y"}, 0, rounds=3), HIGHER_X, says("Y2=80"))
    assert talks["consultant"][2::2] == ["Quote up to 2 further numbers."] * 2
    assert end.rewards["consultant"] == pytest.approx(NormalDist().cdf(30 / math.sqrt(7 * 9800 / 12)) - 0.5)
    assert end.log["judge_right"] == 0.0


def test_without_a_side_the_seed_draws_it() -> None:
    row = {name: value for name, value in HIGHER_X.items() if name != "side"}
    assert {SumDebate(row, seed).sides["a"] for seed in range(2)} == set(SIDES)
    assert SumDebate(row, 4).sides == {"a": "X", "b": "Y"}
    assert SumDebate(HIGHER_X, 5).sides == {"a": "X", "b": "Y"}


def test_equal_sums_have_no_right_answer() -> None:
    end, _ = played(SumDebate(ROW, 0), ROW, says(""))
    assert (end.log["judge_right"], end.log["judge_probability"]) == (None, None)
    assert verdict(0.5) == "X"


def accuracy(kind: type[SumDebate], speaker: Speaker, **options: Any) -> float:
    """The judge's over the held-out rows; the game's figure and the checker's are the same."""
    ends = [played(kind(row, 0, **options), row, speaker)[0] for row in HELD_OUT]
    logged = sum(end.log["judge_right"] for end in ends) / len(ends)
    for role in kind.roles:
        columns = {name: [row[name] for row in HELD_OUT] for name in ("side", "higher")}
        columns |= {"environment_reward": [end.rewards[role] for end in ends], "role": [role] * len(ends)}
        verdicts = check_texts("judge_right", [""] * len(ends), [""] * len(ends), columns)
        assert sum(map(bool, verdicts)) / len(verdicts) == pytest.approx(logged)
    return logged


def test_chance_play_tells_the_judge_nothing() -> None:
    assert accuracy(SumDebate, says("I am right.")) == 0.5
    assert accuracy(SumConsultancy, says("")) == 0.5
    assert accuracy(SumDebate, inventing(0)) == pytest.approx(0.5, abs=0.1)


def careless(kind: type[SumDebate]) -> float:
    return sum(accuracy(kind, quoting_anything(seed)) for seed in range(5)) / 5


def test_debaters_that_quote_what_helps_them_lead_the_judge_to_the_truth() -> None:
    """The figures of the recipe debate-sums."""
    assert accuracy(SumDebate, quoting_what_helps) == pytest.approx(0.98)
    assert accuracy(SumDebate, quoting_what_helps, in_turns=True) == pytest.approx(0.98)
    assert accuracy(SumDebate, quoting_what_helps, rounds=3) == 1.0
    assert careless(SumDebate) == pytest.approx(0.83, abs=0.02)


def test_a_consultant_that_quotes_what_helps_it_leads_the_judge_to_its_side() -> None:
    """The figures of the recipe consultancy-sums."""
    assert accuracy(SumConsultancy, quoting_what_helps) == 0.5
    assert careless(SumConsultancy) == pytest.approx(0.73, abs=0.04)


def test_no_lists_are_in_two_splits() -> None:
    by_split: dict[str, set[Any]] = {}
    rows = generate()
    for row in rows:
        key = tuple(sorted((tuple(sorted(row["x"])), tuple(sorted(row["y"])))))
        by_split.setdefault(row["split"], set()).add(key)
        assert row["higher"] == ("X" if sum(row["x"]) > sum(row["y"]) else "Y")
    keys = list(by_split.values())
    assert [len(own) for own in keys] == [300, 40, 100]
    assert len(set.union(*keys)) == 440
    for split in by_split:
        own = [row for row in rows if row["split"] == split]
        assert sum(row["higher"] == "X" for row in own) == len(own) / 2
        assert sum(row["higher"] == row["side"] for row in own) == len(own) / 2


@pytest.mark.parametrize(
    ("row", "options", "message"),
    [
        (ROW, {"rounds": 4}, "1 to 3 rounds, not 4"),
        (ROW, {"quotes": 0}, "`quotes` is at least 1"),
        ({"x": [1]}, {}, "a column `y` (list)"),
        ({"x": [1], "y": ["2"]}, {}, "`y` should be a list of whole numbers"),
        ({"x": [], "y": [1]}, {}, "`x` should be a list of whole numbers"),
        ({**ROW, "side": "Z"}, {}, "`side` should be X or Y, not 'Z'"),
    ],
)
def test_what_is_no_debate_is_named(row: Any, options: Any, message: str) -> None:
    with pytest.raises(UserError) as error:
        SumDebate(row, 0, **options)
    assert message in str(error.value)
