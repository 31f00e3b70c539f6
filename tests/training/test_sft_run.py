"""SFT in the loop with a real, tiny model: it learns the answers, is evaluated, and goes on after a stop."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from helpers import final_state, held_out_of, tiny_config, tiny_recipe, write_data

from vigneron import api
from vigneron.errors import UserError
from vigneron.recipe import check_config
from vigneron.training.folder import RunFolder

SFT: dict[str, Any] = {
    "method": {"name": "sft"},
    "optimizer": {"actor_lr": 1e-2},
    "reward": {"kind": "binary"},
    "group_size": 1,
    "max_new_tokens": 8,
}


def config_of(tmp_path: Path, model: Path, **changes: Any) -> Any:
    return tiny_config(model, write_data(tmp_path), **{**SFT, **changes})


def test_it_learns_the_answers_by_heart(tmp_path: Path, tiny_folder: Path) -> None:
    write_data(tmp_path)
    shutil.copy(tmp_path / "words.jsonl", held_out_of(tmp_path / "words.jsonl"))  # asked what it has learned
    recipe = tiny_recipe(tiny_folder, tmp_path / "words.jsonl", **SFT, steps=120, prompts_per_step=10, eval_every=120)
    config = check_config(recipe, "tiny")
    trained = api.train(config, runs=tmp_path, name="run")
    records = RunFolder(trained.folder).metrics()
    losses = [record["loss/nll"] for record in records if "loss/nll" in record]
    assert losses[0] > 4
    assert losses[-1] < 0.5
    assert records[0]["eval/accuracy"] == 0.0
    assert records[-1]["eval/accuracy"] >= 0.7
    assert "reward" not in records[1]  # demonstrations earn nothing
    assert "accuracy" not in records[1]
    assert records[-1]["eval/reward"] == records[-1]["eval/accuracy"]


def test_two_runs_and_a_resumed_one_are_the_same(tmp_path: Path, tiny_folder: Path) -> None:
    whole = api.train(config_of(tmp_path, tiny_folder, steps=6, save_every=2), runs=tmp_path, name="whole")
    half = config_of(tmp_path, tiny_folder, steps=6, save_every=2)
    api.train(half, runs=tmp_path, name="half")
    folder = RunFolder(tmp_path / "half")
    last = max((folder.path / "checkpoints").glob("step-*"), key=lambda path: int(path.name[5:]))
    for file in sorted(last.rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    last.rmdir()
    api.resume(folder.path)
    assert final_state(folder.path) == final_state(whole.folder)


def test_an_answer_that_does_not_fit_is_found_at_the_start(tmp_path: Path, tiny_folder: Path) -> None:
    """The tiny model has room for 64 tokens."""
    data = tmp_path / "rows.jsonl"
    rows = [{"prompt": "a", "answer": "b"}, {"prompt": "c", "answer": "d" * 70}]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = tiny_config(tiny_folder, data, **SFT)
    with pytest.raises(UserError, match=r"prompt 2 of the training data with its answer, 73 tokens"):
        api.train(config, runs=tmp_path, name="run")


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"group_size": 4}, "`group_size` has no effect with `method: sft`"),
        ({"sampling": {"temperature": 0.5}}, "`sampling` has no effect with `method: sft`"),
        ({"optimizer": {"critic_lr": 0.1}}, "`optimizer.critic_lr` has no effect"),
    ],
)
def test_inert_options_are_refused(changes: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError, match=line):
        check_config({"method": "sft", "data": {"task": "antonyms"}, **changes}, "my.yaml")


def test_a_reward_may_be_left_out_and_only_then() -> None:
    assert check_config({"method": "sft", "data": {"task": "antonyms"}}, "my.yaml").reward.kind == "binary"
    with pytest.raises(UserError, match="'reward' is missing"):
        check_config({"method": "actor_critic", "data": {"task": "antonyms"}}, "my.yaml")
