"""Conversations as other tools write them: ShareGPT's, OpenAI's older keys, JSON text in a table."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from support.command_line import write_jsonl
from vigneron.data.foreign_messages import with_messages
from vigneron.data.formats import conversation_of
from vigneron.errors import UserError
from vigneron.recipe import check_config
from vigneron.run_data.load import load_data

HI, YO = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}
HUMAN, GPT = {"from": "human", "value": "hi"}, {"from": "gpt", "value": "yo"}
CALL = {"name": "f", "arguments": "{}"}
CALLED = {"id": "call00002", "type": "function", "function": CALL}


def loaded(path: Path, method: str = "sft") -> list[dict[str, Any]]:
    return list(load_data(check_config({"method": {"name": method}, "data": {"train": str(path)}}, "my.yaml")).train)


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [HI, YO]},
        {"conversations": [HI, YO]},
        {"conversations": [HUMAN, GPT]},
        {"conversations": json.dumps([HUMAN, GPT])},
        {"messages": [HUMAN, GPT]},
        {"messages": json.dumps([HI, YO])},
    ],
)
def test_forms_of_one_conversation_are_read_alike(tmp_path: Path, row: dict[str, Any]) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", [json.dumps(row)])
    assert loaded(path) == [{"messages": [HI, YO], "prompt": [HI], "answer": "yo"}]


def test_messages_of_a_csv_file_are_json_text(tmp_path: Path) -> None:
    talk = json.dumps([HI, YO]).replace('"', '""')
    (tmp_path / "a.csv").write_text(f'messages\n"{talk}"\n')
    assert loaded(tmp_path / "a.csv")[0]["messages"] == [HI, YO]


def test_conversations_beside_a_prompt_are_a_column_like_others() -> None:
    row = {"prompt": "p", "conversations": [HUMAN, GPT]}
    assert with_messages(row, "here") == row


def test_sides_of_pairs_may_be_of_sharegpt(tmp_path: Path) -> None:
    row = {"prompt": "hi", "chosen": [GPT], "rejected": [{"from": "gpt", "value": "no"}]}
    (read,) = loaded(write_jsonl(tmp_path / "rows.jsonl", [json.dumps(row)]), "dpo")
    assert (read["prompt"], read["chosen"], read["rejected"][0]["content"]) == ([HI], [YO], "no")


def test_function_calls_are_tool_calls_and_their_results_turns_of_a_tool() -> None:
    call = {"role": "assistant", "content": None, "function_call": CALL}
    talk = [HI, call, {"role": "function", "name": "f", "content": "1"}, {**YO, "function_call": None}]
    wanted = [
        HI,
        {"role": "assistant", "content": None, "tool_calls": [CALLED]},
        {"role": "tool", "name": "f", "content": "1", "tool_call_id": "call00002"},
        YO,
    ]
    functions = [{"name": "f", "parameters": {}}]
    row = with_messages({"messages": talk, "functions": functions}, "here")
    assert row == {"messages": wanted, "tools": [{"type": "function", "function": functions[0]}]}
    beside = {"role": "assistant", "content": "Let me look.", "function_call": CALL}
    assert with_messages({"messages": [HI, beside]}, "here")["messages"][1] == {
        "role": "assistant",
        "content": "Let me look.",
        "tool_calls": [CALLED],
    }
    assert with_messages({"functions": ["sin", "cos"]}, "here") == {"functions": ["sin", "cos"]}


def weighted(*weights: Any) -> list[dict[str, Any]]:
    return [turn for weight in weights for turn in (HI, YO if weight is None else {**YO, "weight": weight})]


@pytest.mark.parametrize(
    ("weights", "trained"),
    [
        ((1, 1), (0, 4)),
        ((None, 1), (0, 4)),
        ((0, 1), (3, 4)),
        ((0, None), (3, 4)),
        ((0, 1, 1), (3, 6)),
        ((0, 1.0, 0), (3, 4)),
        ((1, 0), (1, 2)),
    ],
)
def test_turns_of_weight_0_are_read_and_not_trained_on(
    tmp_path: Path, weights: tuple[Any, ...], trained: tuple[int, int]
) -> None:
    (row,) = loaded(write_jsonl(tmp_path / "rows.jsonl", [json.dumps({"messages": weighted(*weights)})]))
    assert "weight" not in json.dumps(row)
    conversation, first = conversation_of(row)
    assert (first, len(conversation)) == trained
    assert conversation == weighted(*[None] * len(weights))[: trained[1]]


@pytest.mark.parametrize(
    ("row", "line"),
    [
        ({"messages": weighted(1, 0, 1)}, "turn 4 of messages has `weight` 0, which is read only in `messages`, with"),
        ({"messages": weighted(0, 0)}, "every answer of messages has `weight` 0: leave the conversation out"),
        ({"messages": weighted(0.5)}, "turn 2 of messages has `weight` 0.5: expected 0 or 1"),
        (
            {"prompt": [HI], "completion": [{**YO, "weight": 0}, HI, YO]},
            "turn 1 of completion has `weight` 0, .*: leave `weight` out, or leave the conversation out",
        ),
        (
            {"messages": [HI, {**YO, "function_call": CALL, "tool_calls": [CALLED]}]},
            "turn 2 of messages has both `function_call` and `tool_calls`: keep one",
        ),
        ({"messages": [HI, {**YO, "function_call": "f"}]}, "turn 2 of messages has a `function_call` without a `name`"),
        (
            {"conversations": [HUMAN, {"from": "observation", "value": "1"}, GPT]},
            "turn 2 of messages is from 'observation': of ShareGPT's form the turns of human, gpt and system are read",
        ),
        ({"messages": "[{'role': 'user'}]"}, "messages is a text that is not JSON: give a list of messages, or its"),
        ({"messages": '[{"role": "user", "content": "\\ud800"}]'}, "messages contains an unpaired surrogate"),
        ({"messages": [HI, {**YO, "role": "gpt"}]}, r"messages, turn 2: unknown role 'gpt' .did you mean 'assistant'"),
        ({"messages": [HI, {**YO, "role": "Assistant"}]}, "turn 2: unknown role 'Assistant' .did you mean 'assistant'"),
        ({"messages": [{**HI, "role": "human"}, YO]}, "messages, turn 1: unknown role 'human' .did you mean 'user'"),
        ({"messages": [HI]}, "messages has no turn of role 'assistant' to train on: add one"),
        ({"completion": [HI, YO]}, "completion is a list of messages, and the row has no `prompt`: add it, or name a"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, row: dict[str, Any], line: str) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", [json.dumps(row)])
    with pytest.raises(UserError) as caught:
        loaded(path)
    assert re.match(f"data: '{path}', row 1: (.*, )?{line}", str(caught.value))
