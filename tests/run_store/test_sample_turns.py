"""A sample's conversation as pages show it, whatever is stored."""

from typing import Any

import pytest

from support.labelling import sample
from vigneron.report.tables import conversation_lines
from vigneron.run_store.sample_turns import MOST_TURNS, ToolCall, Turn, turns_of_sample, without_notes

CALL = {"type": "function", "id": "1", "function": {"name": "add", "arguments": {"a": 1}}}
TALK: list[dict[str, Any]] = [
    {
        "role": "assistant",
        "content": "",
        "thinking": "hm",
        "tool_calls": [CALL],
        "reward": 0,
        "log": {"n": 1, "s": "x"},
    },
    {"role": "tool", "name": "add", "tool_call_id": "1", "content": "2"},
    {"role": "assistant", "content": "<call", "tool_error": "it is not closed", "reward": 0.25},
]


def test_turns_with_their_calls_rewards_and_what_is_trained() -> None:
    talk = turns_of_sample(sample(1, 0, "p", "c", conversation=TALK, cut="turns", environment_error=None))
    assert talk is not None
    assert talk.turns == (
        Turn("assistant", "", True, True, None, "hm", (ToolCall("add", '{"a": 1}'),), None, 0, "n 1, s x"),
        Turn("tool", "2", False, False, "add"),
        Turn("assistant", "<call", True, True, fault="it is not closed", reward=0.25),
    )
    assert (talk.ended, talk.error, talk.left_out) == ("environment.max_turns was reached", None, 0)


@pytest.mark.parametrize(
    ("kind", "extras", "trained"),
    [("train", {}, True), ("eval", {}, None), ("train", {"environment_error": "x"}, False)],
)
def test_held_out_and_failed_ones_are_not_trained(kind: str, extras: dict[str, Any], trained: bool | None) -> None:
    talk = turns_of_sample(sample(1, 0, "p", "c", kind, conversation=TALK, **extras))
    assert talk is not None
    assert [turn.trained for turn in talk.turns] == [trained, None if trained is None else False, trained]


def test_the_terminal_has_the_same() -> None:
    lines = [*conversation_lines(sample(1, 0, "p", "c", conversation=TALK, cut="context", environment_error="raised"))]
    assert lines == [
        "assistant: hm",
        '  add({"a": 1})',
        "  [reward 0, n 1, s x]",
        "tool (add): 2",
        "assistant: <call",
        "  [reward 0.25, no valid call: it is not closed]",
        "[ended early: the next reply did not fit into the model's context]",
        "[the environment failed, so there is no reward: it raised]",
    ]
    assert [*conversation_lines(sample(1, 0, "p", "c"))] == ["'c'"]


@pytest.mark.parametrize("stored", [None, [], {}, "text", 3])
def test_other_samples_have_no_turns(stored: Any) -> None:
    assert turns_of_sample(sample(1, 0, "p", "c", conversation=stored)) is None
    assert turns_of_sample(sample(1, 0, "p", "c")) is None


def test_what_is_stored_may_be_anything() -> None:
    stored = [None, 3, "text", {}, {"role": [], "content": {"a": 1}, "reward": "x", "log": 3, "tool_calls": "no"}]
    stored += [{"role": "assistant", "content": [{"type": "text", "text": "a"}], "tool_calls": [None, {"function": 3}]}]
    stored += [{"role": "assistant", "reward": float("nan"), "content": None, "name": 5}]
    talk = turns_of_sample(sample(1, 0, "p", "c", conversation=stored, cut=[1], environment_error={}))
    assert talk is not None
    assert [turn.text for turn in talk.turns] == ["", "3", "text", "", '{"a": 1}', "a", ""]
    assert [turn.reward for turn in talk.turns] == [None] * 7
    assert talk.turns[5].calls == (ToolCall("?", ""), ToolCall("?", "3"))
    assert (talk.ended, talk.error) == ("[1]", "{}")
    assert len([*conversation_lines(sample(1, 0, "p", "c", conversation=stored))]) >= 7


def test_a_long_conversation_is_cut_and_counted() -> None:
    talk = turns_of_sample(sample(1, 0, "p", "c", conversation=[TALK[1]] * (MOST_TURNS + 7)))
    assert talk is not None
    assert (len(talk.turns), talk.left_out) == (MOST_TURNS, 7)


def test_notes_are_no_part_of_what_is_trained_on() -> None:
    assert without_notes(TALK[2:]) == [{"role": "assistant", "content": "<call"}]
    assert without_notes("text") == "text"
