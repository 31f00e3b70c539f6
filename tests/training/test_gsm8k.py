"""The recipe `grpo-gsm8k` on rows of our own in GSM8K's format, with a tiny model; its checker; `data.chat`."""

import json
import sqlite3
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from vigneron import api
from vigneron.errors import UserError
from vigneron.recipe import load_config
from vigneron.rewards.checkers import load_checker
from vigneron.rewards.final_number import final_number
from vigneron.run_store.folder import RunFolder

ROWS = [
    ("Ann has 3 pens and buys 4 more. How many has she?", "3 + 4 = <<3+4=7>>7 pens.\n#### 7"),
    ("A book has 1,200 pages. Bob read 200. How many are left?", "1200 - 200 = <<1200-200=1000>>1000.\n#### 1,000"),
    ("It was 4 degrees and fell by 6. What is it now?", "4 - 6 = <<4-6=-2>>-2\n#### -2"),
    ("A pen costs $1.50. What do two cost, in dollars?", "2 * 1.5 = <<2*1.5=3>>3\n#### 3"),
]


def written(path: Path, rows: list[tuple[str, str]]) -> Path:
    path.write_text("".join(json.dumps({"question": q, "answer": a}) + "\n" for q, a in rows))
    return path


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("3 + 4 = 7 pens.\n#### 7", "7"),
        ("#### 5 of them\n#### $1,000.", "1000"),
        ("#### -2.50 degrees, not 9", "-2.5"),
        ("so 12 boxes, in all 42.0 pens.", "42"),
        ("from 10-3 it is", "3"),
        ("1,2", "1.2"),
        ("B12 and x9", None),
        ("no idea ####", None),
        ("7 ####", None),
        ("9" * 61, None),
        ("", None),
    ],
)
def test_the_final_number(text: str, number: str | None) -> None:
    assert final_number(text) == (None if number is None else Decimal(number))


def test_the_checker_compares_final_numbers() -> None:
    check = load_checker("final_number")
    completions = ["#### 1000", "It is 1,000.00", "#### 100", "I do not know", "#### 7"]
    answers = ["#### 1,000", "#### 1,000", "#### 1,000", "#### 1,000", "no number"]
    assert check(prompts=[""] * 5, completions=completions, answer=answers) == [1.0, 1.0, 0.0, 0.0, None]


def test_the_recipe_trains_on_rows_of_that_format(tmp_path: Path, roomy_folder: Path) -> None:
    train, held_out = written(tmp_path / "train.jsonl", ROWS[:3]), written(tmp_path / "test.jsonl", ROWS[3:])
    # The hub's dataset is replaced by two files; all else but the sizes is the recipe's.
    data = [f"data.train={train}", f"data.held_out={held_out}", "data.config=null", "data.held_out_split=null"]
    small = ["steps=1", "prompts_per_step=2", "group_size=2", "max_new_tokens=3", "save_every=0"]
    config = load_config("grpo-gsm8k", [*data, *small, f"model.name={roomy_folder}", "model.device=cpu"])
    run = api.train(config, runs=tmp_path / "runs")
    logged = {name for record in RunFolder(run.folder).metrics() for name in record}
    assert {"reward", "accuracy", "eval/accuracy"} <= logged
    with sqlite3.connect(run.folder / "samples.sqlite") as database:
        prompts = {prompt for (prompt,) in database.execute("select prompt from samples")}
    # As a conversation: the tiny model's template writes roles.
    assert all(prompt.startswith("user: ") and "Reason step by step." in prompt for prompt in prompts)
    assert any("$1.50" in prompt for prompt in prompts)


@pytest.mark.parametrize(
    ("recipe", "data", "line"),
    [
        ("grpo-antonyms", [], "`chat` has no effect on the built-in task 'antonyms'"),
        ("sft-antonyms", ["data.task=null", "data.train=rows.jsonl"], "`data.chat` has no effect with `method: sft`"),
    ],
)
def test_chat_is_refused_where_it_has_no_effect(recipe: str, data: list[str], line: str) -> None:
    changes: list[Any] = [*data, "data.chat=true"]
    with pytest.raises(UserError, match=line):
        load_config(recipe, changes)
