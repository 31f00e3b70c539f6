"""Warnings about conversations: failed environments, failing tools, cut turns."""

from pathlib import Path
from typing import Any

import pytest

from support.labelling import write_rows
from support.small_batch import make_batch
from support.talking_runs import talking_config, talking_rows
from vigneron import api
from vigneron.batch import Batch
from vigneron.config import Config
from vigneron.recipe import check_config
from vigneron.run_store.notices import kept_notices
from vigneron.training.conversation_alerts import conversation_warnings


def config(**environment: Any) -> Config:
    recipe = {
        "method": {"name": "grpo"},
        "environment": {"kind": "python", "class": "a:B", "max_turns": 3, **environment},
        "data": {"train": "rows.jsonl"},
        "reward": {"kind": "environment"},
        "group_size": 2,
        "max_new_tokens": 4,
    }
    return check_config(recipe, "talk")


def batch(*talks: tuple[str | None, str | None, list[dict[str, Any]]]) -> Batch:
    """Samples with an error, why they were cut, and messages."""
    names = ("environment_error", "cut", "conversation")
    return make_batch(
        [2] * len(talks), [3] * len(talks), extras=dict(zip(names, zip(*talks, strict=True), strict=True))
    )


def call(calls: int, *results: str) -> list[dict[str, Any]]:
    errors = sum(result.startswith("error") for result in results)
    turn = {"role": "assistant", "content": "…", "log": {"tool_calls": calls, "tool_errors": errors}}
    return [turn, *({"role": "tool", "content": result} for result in results)]


def test_the_most_frequent_failure_of_an_environment_is_told() -> None:
    talks = batch(("raised KeyError: 'x'", None, []), (None, None, []), *[("took longer than 2 s", None, [])] * 2)
    texts = conversation_warnings(talks, config())
    assert list(texts) == ["environment"]
    assert (
        "failed in 3 of 4 conversations of this step, most often because it took longer than 2 s"
        in texts["environment"]
    )


def test_tools_are_told_of_if_every_call_fails() -> None:
    failing = [(None, None, call(2, "error: no key", "error: late")), (None, None, call(2, *["error: no key"] * 2))]
    assert (
        "all 4 tool calls of this step failed, most often with 'error: no key'"
        in conversation_warnings(batch(*failing), config())["tools"]
    )
    assert conversation_warnings(batch(*failing, (None, None, call(1, "7"))), config()) == {}
    assert conversation_warnings(batch(failing[0]), config()) == {}  # two calls are no rule
    demonstrated: Any = (None, None, None)
    assert list(conversation_warnings(batch(*failing, demonstrated), config())) == ["tools"]


def test_turns_that_are_cut_are_told_of_unless_there_is_one() -> None:
    talks = batch((None, "length", []), (None, None, []))
    text = conversation_warnings(talks, config())["turn length"]
    assert text.startswith("in 1 of 2 conversations of this step a turn of the model is cut at max_new_tokens=4, which")
    assert conversation_warnings(talks, config(max_turns=1)) == {}
    assert conversation_warnings(batch((None, "turns", [])), config()) == {}
    (text,) = conversation_warnings(batch((None, "turns", []), (None, "context", [])), config()).values()
    assert text.startswith("in 1 of 2 conversations of this step the next reply did not fit into the model's context")


@pytest.mark.slow
def test_a_run_gives_the_reason_once(tmp_path: Path) -> None:
    given = talking_config(tmp_path, eval_every=0, reward={"kind": "environment", "missing_limit": 0.5})
    write_rows(tmp_path / "rows.jsonl", [*talking_rows("abc", 3), *talking_rows("d", 3, breaks=True)])
    given = given.model_copy(update={"prompts_per_step": 4, "steps": 2})
    run = api.train(given, name="talk", runs=tmp_path / "runs")
    warnings = [
        notice.text for notice in kept_notices(run.folder) if notice.about in ("environment", "missing rewards")
    ]
    assert len(warnings) == 1
    assert (
        "failed in 4 of 16 conversations of this step, most often because it raised ValueError: out of order ("
        in (warnings[0])
    )
