"""Reference answers and rewards of items, agreement with the reward, and the command that trains on the labels."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.labelling import judge_by, make_run, sample, session_of, write_comparisons, write_rows
from vigneron.commands.label import LabelOptions, agreement_line, next_step
from vigneron.labels.items import Comparison
from vigneron.labels.journal import journal_of, read_entries
from vigneron.recipe import load_config


def write_run(folder: Path, count: int = 4) -> Path:
    """Of each prompt a completion with `!` and reward 1, and one with `?` and reward 0."""
    samples = [
        replace(sample(1, 2 * n + m, f"say {n}", f"{n}{mark}"), reward=1.0 - m, answer=f"{n}!")
        for n in range(count)
        for m, mark in enumerate("!?")
    ]
    return make_run(folder / "run", samples, [f"say {n}" for n in range(count)])


def test_a_run_gives_its_answers_and_rewards_and_the_journal_keeps_them(tmp_path: Path) -> None:
    run, out = write_run(tmp_path, 1), tmp_path / "pairs.jsonl"
    session = session_of(run, out)
    shown = session.state()["item"]
    assert shown["answer"] == "0!"
    assert dict(zip(shown["completions"], shown["rewards"], strict=True)) == {"0!": 1.0, "0?": 0.0}
    judge_by(session, "!")
    session.journal.close()
    record = read_entries(journal_of(out), "pairs")[0]
    again = Comparison.of_record(record)
    assert again is not None
    assert (again.answer, again.rewards) == ("0!", tuple(record["rewards"]))
    for rewards in ([1], "ab", [1, "x"]):
        foreign = Comparison.of_record({**record, "rewards": rewards, "answer": 3})
        assert foreign is not None
        assert (foreign.answer, foreign.rewards) == (None, None)


@pytest.mark.parametrize(
    ("kind", "row"),
    [
        ("pairs", {"prompt": "p", "completions": ["a", "b"], "answer": "c"}),
        ("best", {"prompt": "p", "completions": ["a", "b"], "answer": 12}),
        ("solutions", {"prompt": "p", "completion": "a\nb", "answer": [{"role": "assistant", "content": "c"}]}),
    ],
)
def test_a_file_gives_the_column_answer(tmp_path: Path, kind: str, row: dict[str, Any]) -> None:
    source = write_rows(tmp_path / "rows.jsonl", [row])
    options = {} if kind == "pairs" else {kind: True}
    shown = session_of(source, tmp_path / "out.jsonl", **options).state()["item"]
    assert shown["answer"] == ("12" if kind == "best" else "c")


def test_agreement_with_the_reward_is_given_at_the_end(tmp_path: Path) -> None:
    run, out = write_run(tmp_path), tmp_path / "pairs.jsonl"
    session = session_of(run, out)
    for mark in "!!?":
        judge_by(session, mark)
        assert session.state()["with_reward"] is None
    session.judge(session.state()["item"]["id"], "tie")
    line = "ann chose the completion with the highest reward in 2 of 3 items"
    assert session.state()["with_reward"] == line
    assert agreement_line(LabelOptions(run, out)).splitlines()[1] == line


@pytest.mark.parametrize(
    ("options", "method", "model"),
    [
        ({}, "dpo", "run"),
        ({"best": True}, "sft", "run"),
        ({"solutions": True, "separator": ". "}, "process_model", "run"),
        ({"source": None, "sample": "some/model"}, "dpo", "some/model"),
    ],
)
def test_the_command_trains_on_the_rows_from_the_labelled_model(
    tmp_path: Path, options: dict[str, Any], method: str, model: str
) -> None:
    run = write_run(tmp_path)
    out = write_comparisons(tmp_path).rename(tmp_path / "a b.jsonl")
    words = shlex.split(next_step(LabelOptions(**{"source": run, "out": out, **options}), 40))
    recipe = tmp_path / f"a b-{method}.yaml"
    assert words == ["vigneron", "train", str(recipe), "steps=8", "prompts_per_step=16"]
    config = load_config(words[2], words[3:])
    assert (config.method.name, config.data.train) == (method, str(out))
    assert config.model.name == (str(run) if model == "run" else model)
    assert getattr(config.method, "separator", ". ") == ". "
    recipe.write_text("edited: true")
    next_step(LabelOptions(**{"source": run, "out": out, **options}), 41)
    assert recipe.read_text() == "edited: true"
