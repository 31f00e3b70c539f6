"""Results of `vigneron eval` as a log of Inspect. Its reader reads the file where the package is installed."""

import json
import math
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from support.command_line import vigneron, write_recipe
from vigneron.api import Trained
from vigneron.commands.inspect_log import inspect_log, write_inspect_log
from vigneron.recipe import load_config
from vigneron.run_store.samples import Sample

CALL = {"type": "function", "id": "1", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}
TALK = [
    {"role": "assistant", "content": "I call.", "tool_calls": [CALL], "reward": 0.0},
    {"role": "tool", "name": "add", "content": "3"},
    {"role": "assistant", "content": "It is 3."},
]
METRICS = {"accuracy": 2 / 3, "kl": math.nan}


def sample(number: int, completion: str, reward: float | None, correct: bool | None, **extras: Any) -> Sample:
    return Sample(3, "eval", number, f"prompt {number}", completion, "3", reward, None, correct, number == 1, extras)


SAMPLES = [
    sample(0, "3", 1.0, True, why={"length": 1}),
    sample(1, "four \ud800 </script>", 0.5, False, reward_length=math.nan),
    sample(2, "It is 3.", None, True, conversation=TALK),
]


@pytest.fixture
def trained(tmp_path: Path) -> Trained:
    config = load_config(str(write_recipe(tmp_path, tmp_path / "model")), [])
    return Trained(tmp_path / "runs" / "my run", config, 3, cast(Any, None), cast(Any, None))


def test_the_log_has_samples_scores_and_metrics(trained: Trained, tmp_path: Path) -> None:
    log = inspect_log(trained, METRICS, SAMPLES, datetime(2026, 11, 17, 12, 30, tzinfo=UTC))
    assert (log["version"], log["status"]) == (2, "success")
    assert log["eval"]["model"] == "vigneron/my run-step-3"
    assert log["eval"]["created"] == "2026-11-17T12:30:00+00:00"
    correct, reward, ours = log["results"]["scores"]
    assert correct["metrics"]["accuracy"]["value"] == pytest.approx(2 / 3)
    # Standard error of 1, 0, 1: the deviation with n - 1 is sqrt(1/3), over sqrt(3).
    assert correct["metrics"]["stderr"]["value"] == pytest.approx(1 / 3)
    assert (reward["scored_samples"], reward["unscored_samples"]) == (2, 1)  # missing is not zero
    assert reward["metrics"]["mean"]["value"] == 0.75
    assert list(ours["metrics"]) == ["accuracy"]  # NaN is no JSON
    first, cut, talk = log["samples"]
    assert (first["input"], first["target"], first["metadata"]) == ("prompt 0", "3", {"why": {"length": 1}})
    assert first["scores"] == {"correct": {"value": "C", "answer": "3"}, "reward": {"value": 1.0}}
    assert cut["output"]["choices"][0]["stop_reason"] == "max_tokens"
    assert cut["metadata"] == {"reward_length": None}  # a part of a combined reward that is missing
    json.dumps(log, allow_nan=False)
    assert list(talk["scores"]) == ["correct"]
    assert [message["role"] for message in talk["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert talk["messages"][1]["tool_calls"][0]["arguments"] == {"a": 1, "b": 2}
    assert talk["output"]["completion"] == "It is 3."
    assert str(tmp_path) not in json.dumps(log)


def test_inspects_reader_reads_it(trained: Trained, tmp_path: Path) -> None:
    reader = pytest.importorskip("inspect_ai.log")
    path = write_inspect_log(tmp_path / "logs", trained, METRICS, SAMPLES)
    (listed,) = reader.list_eval_logs(str(tmp_path / "logs"))
    log = reader.read_eval_log(listed)
    assert Path(listed.name.removeprefix("file://")) == path
    assert (log.status, len(log.samples)) == ("success", 3)
    assert log.results.scores[0].metrics["accuracy"].value == pytest.approx(2 / 3)
    assert log.samples[0].scores["reward"].value == 1.0
    assert log.samples[2].messages[1].tool_calls[0].function == "add"
    assert log.samples[1].output.completion == "four ? </script>"


@pytest.mark.slow
def test_eval_writes_it(tmp_path: Path, tiny_folder: Path) -> None:
    recipe = write_recipe(tmp_path, tiny_folder, steps=1)
    assert vigneron("train", recipe, "--runs", tmp_path / "runs", "--name", "my").code == 0
    words = ("eval", tmp_path / "runs" / "my", "--file", tmp_path / "rows.jsonl", "--inspect-logs", tmp_path / "logs")
    answer = vigneron(*words)
    assert answer.code == 0, answer.err
    (path,) = (tmp_path / "logs").iterdir()
    assert answer.out.endswith(f"wrote {path}\n")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d\+00-00_my_\w{22}\.json", path.name)
    log = json.loads(path.read_text())
    assert [one["input"] for one in log["samples"]] == ["a", "c"]
    assert "--inspect-logs writes greedy completions" in vigneron(*words, "--samples", 2).err
