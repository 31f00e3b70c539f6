"""`vigneron validate` shows what the chat template writes for the first row."""

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.command_line import vigneron
from support.real_templates import smollm2, template

TALK = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho."}]


@pytest.fixture
def model(tmp_path: Path, tiny_folder: Path) -> Any:
    """A folder with a template: `validate` reads no weights."""

    def made(name: str) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        tokenizer = smollm2()
        tokenizer.chat_template = template(name)
        tokenizer.save_pretrained(folder)
        (folder / "config.json").write_text((tiny_folder / "config.json").read_text())
        return folder

    return made


def validated(tmp_path: Path, folder: Path, row: Any, **keys: Any) -> Any:
    rows = row if isinstance(row, list) else [row]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    recipe = {"about": "x", "data": {"train": str(tmp_path / "rows.jsonl")}, "steps": 1, "prompts_per_step": 1}
    recipe |= {
        "method": {"name": "sft"},
        "model": {"name": str(folder), "device": "cpu", **keys.pop("model", {})},
        **keys,
    }
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(recipe))
    return vigneron("validate", tmp_path / "mine.yaml")


@pytest.mark.slow
def test_a_note_names_the_first_row_that_has_one(tmp_path: Path, model: Any) -> None:
    rows = [{"messages": TALK}, {"messages": [*TALK, TALK[0]]}]
    done = validated(tmp_path, model("qwen3"), rows)
    assert "row 2): turn 3 (role 'user') comes after the last answer and is not used" in done.out


ADD = """
def add(left: int, right: int) -> int:
    \"\"\"Add two numbers.

    Args:
        left: The first one.
        right: The second one.
    \"\"\"
    return left + right
"""


@pytest.mark.slow
def test_the_memory_plan_counts_the_tools(tmp_path: Path, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the environment are in every prompt; without them it has 9 tokens and the system's turn."""
    folder = model("qwen3")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "adding.py").write_text(ADD)
    keys = {
        "method": {"name": "grpo"},
        "reward": {"kind": "binary"},
        "group_size": 2,
        "environment": {"kind": "tools", "tools": ["adding:add"], "max_turns": 2},
        "model": {"device": "auto"},
    }
    monkeypatch.chdir(tmp_path)
    done = validated(tmp_path, folder, {"prompt": "Hi", "answer": "Ho."}, **keys)
    assert done.code == 0, done.err
    (tokens,) = re.findall(r"with prompts of up to (\d+) tokens", done.out)
    (shown,) = re.findall(r"row 1: '(.*)»…«'", done.out)
    assert "# Tools" in shown
    tokenizer = smollm2()
    assert int(tokens) == len(tokenizer(ast.literal_eval(f"'{shown}'"), add_special_tokens=False)["input_ids"]) > 100


@pytest.mark.slow
def test_what_is_trained_and_sampled_is_shown(tmp_path: Path, model: Any) -> None:
    qwen = model("qwen3")
    done = validated(tmp_path, qwen, {"messages": TALK})
    assert done.code == 0, done.err
    assert r"»<think>\n\n</think>\n\nHo.<|im_end|>«" in done.out
    plain = {"model": {"chat_template_kwargs": {"enable_thinking": False}}}
    assert r"</think>\n\n»Ho.<|im_end|>«" in validated(tmp_path, qwen, {"messages": TALK}, **plain).out
    pair = {"prompt": TALK[:1], "chosen": TALK[1:], "rejected": [{"role": "assistant", "content": "No."}]}
    done = validated(tmp_path, qwen, pair, method={"name": "dpo"})
    assert r"</think>\n\nHo.<|im_end|>«" in done.out
    reward = {"method": {"name": "grpo"}, "reward": {"kind": "binary"}, "group_size": 2}
    done = validated(tmp_path, qwen, {"prompt": TALK[:1], "answer": "Ho."}, **reward)
    assert r"<|im_start|>assistant\n»…«" in done.out, done.err


@pytest.mark.slow
def test_faults_of_the_template_and_its_arguments_are_found(tmp_path: Path, model: Any) -> None:
    gemma = model("gemma")
    done = validated(tmp_path, gemma, {"messages": [{"role": "system", "content": "s"}, *TALK]})
    assert done.code == 2
    line = f"row 1 of the training data ('{tmp_path}/rows.jsonl', row 1): the model's chat template fails: System role"
    assert line in done.err
    keys = {"model": {"chat_template_kwargs": {"enable_thinking": False}}}
    done = validated(tmp_path, gemma, {"messages": TALK}, **keys)
    assert done.code == 2
    assert "chat template does not use 'enable_thinking': remove it" in done.err
    done = validated(tmp_path, gemma, {"prompt": "a", "completion": "b"}, **keys)
    assert done.code == 2
    assert "model.chat_template_kwargs has no effect on plain text prompts" in done.err
    keys = {"model": {"chat_template_kwargs": {"messages": 1}}}
    assert "'messages' is not the name of an argument" in validated(tmp_path, gemma, {"messages": TALK}, **keys).err
    keys = {"model": {"chat_date": "yesterday"}}
    assert "should be a date such as 2026-11-30" in validated(tmp_path, gemma, {"messages": TALK}, **keys).err
    keys = {"model": {"chat_date": "2026-11-30"}}
    assert "model.chat_date has no effect" in validated(tmp_path, gemma, {"messages": TALK}, **keys).err
    r1 = model("deepseek_r1_distill")
    assert r"row 1): the generation prompt ends in '<think>\n'" in validated(tmp_path, r1, {"messages": TALK}).out


USER, CALL = TALK[0], {"role": "assistant", "content": "", "tool_calls": [{"name": "add", "arguments": {}}]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bad", "line"),
    [
        ([USER, *TALK], "the model's chat template fails: Conversation roles must alternate"),
        ([USER, CALL, *TALK], "turn 2 has tool calls, which the model's chat template cannot write"),
    ],
)
@pytest.mark.parametrize("method", ["sft", "dpo"])
def test_every_row_is_checked_and_errors_name_the_file_and_the_row(
    tmp_path: Path, model: Any, bad: Any, line: str, method: str
) -> None:
    def row(messages: Any) -> dict[str, Any]:
        if method == "sft":
            return {"messages": messages}
        rejected = [{"role": "assistant", "content": "No."}]
        return {"prompt": messages[:-1], "chosen": messages[-1:], "rejected": rejected}

    talks = [[{"role": "user", "content": f"Hi {n}"}, TALK[1]] for n in range(3)]
    gemma, rows = model("gemma"), [row(talk) for talk in (*talks, bad, *talks[:1])]
    done = validated(tmp_path, gemma, rows, method={"name": method})
    assert done.code == 2
    assert f"row 4 of the training data ('{tmp_path}/rows.jsonl', row 4): {line}" in done.err
    (tmp_path / "first.jsonl").write_text(json.dumps(rows[0]) + "\n")
    both = {"train": [str(tmp_path / "first.jsonl"), str(tmp_path / "rows.jsonl")]}
    done = validated(tmp_path, gemma, rows[1:], method={"name": method}, data=both)
    assert f"row 4 of the training data ('{tmp_path}/rows.jsonl', row 3): {line}" in done.err
    apart = {"train": str(tmp_path / "first.jsonl"), "held_out": str(tmp_path / "rows.jsonl")}
    done = validated(tmp_path, gemma, rows[1:], method={"name": method}, data=apart)
    assert f"row 3 of the held-out part ('{tmp_path}/rows.jsonl', row 3): {line}" in done.err
