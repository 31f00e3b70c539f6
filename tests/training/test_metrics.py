"""Instruments beside the reward, by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.small_batch import make_batch
from vigneron.text import length_ratio, repetition, share_in
from vigneron.training.metrics import text_metrics


def test_by_hand() -> None:
    batch = make_batch(
        [1, 1],
        [1, 1],
        completions=("Cold, cold cold!", "hot"),
        columns={"answer": ("cold", "very cold"), "input": ("hot", "hot")},
    )
    assert text_metrics(batch) == {
        "completions/echo": 0.5,  # the second is an echo
        "completions/repetition": pytest.approx((2 / 3 + 0) / 2),
        "completions/distinct": 1.0,  # two texts for two answers
        "completions/length_ratio": pytest.approx((3 / 1 + 1 / 2) / 2),
    }


def test_without_an_input_the_prompt_is_what_may_be_echoed() -> None:
    batch = make_batch([1, 1], [1, 1], completions=("prompt", "prompt"))
    assert text_metrics(batch) == {
        "completions/echo": 1.0,
        "completions/repetition": 0.0,
        "completions/distinct": 0.5,  # one text for two prompts
    }


def test_a_perfect_child_is_as_distinct_as_the_answers_however_often_they_are_asked_for() -> None:
    answers = ("cold", "cold", "cold", "small", "small", "small")
    batch = make_batch([1] * 6, [1] * 6, completions=answers, columns={"answer": answers})
    assert text_metrics(batch)["completions/distinct"] == 1.0


@given(st.text(), st.text())
def test_shares_are_shares(text: str, other: str) -> None:
    assert 0 <= repetition(text) < 1
    assert 0 <= share_in(text, other) <= 1
    assert share_in(text, text) in (0.0, 1.0)
    assert length_ratio(text, other) >= 0
