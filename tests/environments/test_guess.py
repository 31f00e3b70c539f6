"""The guessing game: what is a guess, what is answered, what is earned; best play against a search over all plays."""

import random
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vigneron.data import guess
from vigneron.data.tasks import load_task
from vigneron.environments.guess import GuessingGame
from vigneron.environments.reply import Reply, checked_reply
from vigneron.errors import UserError

ROW = guess.guess_row(lowest=11, width=8, secret=15, split="train")


def said(text: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "?"}, {"role": "assistant", "content": text}]


def played(row: dict[str, Any], guesses: list[str]) -> list[Reply]:
    game = GuessingGame(row, seed=0)
    return [game.reply(said(each)) for each in guesses]


def test_a_game_that_is_won() -> None:
    higher, malformed, outside, lower, won = played(ROW, ["14", "about 15", "19", "17.", " 15\n"])
    assert higher.messages == "Higher than 14."
    assert lower.messages == "Lower than 17."
    assert malformed.messages == outside.messages == "Answer with a number from 11 to 18 only."
    assert [each.done for each in (higher, malformed, outside, lower, won)] == [False] * 4 + [True]
    assert won.reward == pytest.approx(2 / 6)  # six tries, found by the fifth
    assert won.log == {"found": 1.0, "malformed": 0.0}


def test_the_first_guess_earns_1_and_the_last_a_sixth() -> None:
    assert played(ROW, ["15"])[0].reward == 1
    assert played(ROW, [*["11"] * 5, "15"])[-1].reward == pytest.approx(1 / 6)


def test_a_game_that_is_lost_earns_0_after_its_last_try_and_nothing_before() -> None:
    *before, last = played(ROW, ["", "x", "11", "12", "13", "14"])
    assert [reply.reward for reply in before] == [None] * 5
    assert (last.reward, last.done, last.log["found"]) == (0.0, True, 0.0)


@pytest.mark.parametrize(
    "text", ["", "fifteen", "15 16", "+15", "-15", "1 5", "15..", "١٥", "²", "0x0f", "1e1", "9" * 10]
)
def test_what_is_no_guess(text: str) -> None:
    assert guess.read_guess(text) is None


def test_a_guess_may_have_leading_zeros_and_a_full_stop() -> None:
    assert guess.read_guess(" 015. ") == 15


@given(st.lists(st.text() | st.from_regex(r"\s*[0-9]{1,12}\.?\s*"), min_size=1, max_size=6))
def test_no_text_breaks_the_game(texts: list[str]) -> None:
    game = GuessingGame(ROW, seed=0)
    for text in texts:
        reply = checked_reply(game.reply(said(text)))
        if reply.done:
            assert 0 <= (-1 if reply.reward is None else reply.reward) <= 1
            return


@pytest.mark.parametrize("content", [None, [{"type": "text", "text": "15"}]])
def test_contents_that_are_no_text(content: Any) -> None:
    reply = GuessingGame(ROW, seed=0).reply(said(content))
    assert reply.done is (content is not None)


@pytest.mark.parametrize("damage", [{"secret": "15"}, {"turns": None}, {"lowest": True}])
def test_a_row_without_its_columns_is_named(damage: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"needs a column `{next(iter(damage))}`"):
        GuessingGame({**ROW, **damage}, seed=0)


@pytest.mark.parametrize("width", guess.WIDTHS)
def test_binary_search_earns_the_best_mean_reward(width: int) -> None:
    def search(secret: int) -> float:
        row, lowest, highest = guess.guess_row(1, width, secret, "train"), 1, width
        game = GuessingGame(row, seed=0)
        while True:
            middle = (lowest + highest) // 2
            reply = game.reply(said(str(middle)))
            if reply.done:
                assert reply.reward is not None
                return reply.reward
            lowest, highest = (middle + 1, highest) if "Higher" in str(reply.messages) else (lowest, middle - 1)

    assert sum(map(search, range(1, width + 1))) / width == pytest.approx(guess.best_mean_reward(width))


@pytest.mark.parametrize("width", guess.WIDTHS)
def test_no_way_to_play_earns_more_than_the_best_mean_reward(width: int) -> None:
    turns = guess.turns_of(width)

    @cache
    def total(left: int, used: int) -> float:
        """The most that `left` adjacent numbers can earn together after `used` guesses."""
        if left == 0 or used == turns:
            return 0.0
        rest = max(total(below, used + 1) + total(left - 1 - below, used + 1) for below in range(left))
        return guess.reward({"turns": turns}, used + 1) + rest

    assert total(width, 0) / width == pytest.approx(guess.best_mean_reward(width))


def test_warm_up_plays_are_worse_than_best_play_and_better_than_guessing_at_random() -> None:
    rows = guess.warm_up(16)

    def mean(plays: list[list[str]]) -> float:
        rewards = [replies[-1].reward for replies in map(played, trained, plays)]
        return sum(reward or 0.0 for reward in rewards) / len(rewards)

    trained = [row for row in rows if row["split"] == "train"]
    warm = [[turn["content"] for turn in row["play"] if turn["role"] == "assistant"] for row in trained]
    draw = random.Random(1)
    blind = [[str(draw.randint(row["lowest"], row["highest"])) for _ in range(row["turns"])] for row in trained]
    blind = [
        guesses[: guesses.index(str(row["secret"])) + 1] if str(row["secret"]) in guesses else guesses
        for guesses, row in zip(blind, trained, strict=True)
    ]
    assert mean(blind) + 0.1 < mean(warm) < guess.best_mean_reward(16) - 0.1


@pytest.mark.parametrize("width", guess.WIDTHS)
def test_no_range_of_a_split_occurs_in_another_and_no_game_twice(width: int) -> None:
    rows = guess.generate(width)
    ranges = {split: {row["lowest"] for row in rows if row["split"] == split} for split in guess.SPLITS}
    assert not ranges["train"] & ranges["tuning"]
    assert not ranges["held_out"] & (ranges["train"] | ranges["tuning"])
    assert len({(row["lowest"], row["secret"]) for row in rows}) == len(rows) == 640
    for row in rows:
        assert 1 <= row["lowest"] <= row["secret"] <= row["highest"] == row["lowest"] + width - 1 <= guess.LARGEST


@pytest.mark.parametrize("width", guess.WIDTHS)
def test_the_recorded_turns_of_a_play_are_the_games(width: int) -> None:
    for row in load_task(f"guess-{width}-warmup").rows("train"):
        game, messages = GuessingGame(row, seed=0), row["messages"]
        assert len(messages) % 2 == 0
        for at in range(1, len(messages), 2):
            reply = game.reply(messages[: at + 1])
            assert reply.done is (at == len(messages) - 1)
            if not reply.done:
                assert messages[at + 1] == {"role": "user", "content": reply.messages}
