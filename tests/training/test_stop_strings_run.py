"""Runs with stop strings: training, evaluation, chat and recorded samples end completions at them."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.command_line import vigneron
from support.resuming import TrainedOnce, check_third_arm, lose_nothing, lose_rng
from support.tiny_runs import tiny_config, write_data
from vigneron import api
from vigneron.config import Config
from vigneron.recipe import check_config
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.samples import SampleStore
from vigneron.training.record_samples import training_overrides

STOPS = list("abcdefghijklmnopqrstuvwxyz")
KEYS: dict[str, Any] = {
    "method": {"name": "grpo"},
    "reward": {"kind": "python", "function": "support.resuming:drawing_reward"},
    "optimizer": {"actor_lr": 1e-3},
    "sampling": {"stop": STOPS, "mask_truncated": True},
    "max_new_tokens": 10,
    "steps": 8,
}


def config_in(place: Path, model: Path, **changes: Any) -> Config:
    return tiny_config(model, write_data(place), **{**KEYS, **changes})


def test_every_use_of_a_run_ends_at_the_stop_string(tmp_path: Path, obliging_folder: Path) -> None:
    """The model answers `xy` to everything, and `x` where that ends it."""
    config = config_in(
        tmp_path, obliging_folder, sampling={"stop": "x", "temperature": 0.01}, optimizer={"actor_lr": 1e-9}, steps=1
    )
    trained = api.train(config, runs=tmp_path, name="run")
    (step,) = [record for record in RunFolder(trained.folder).metrics() if record.get("step") == 1]
    assert (step["completions/mean_length"], step["completions/clipped_ratio"]) == (1.0, 0.0)
    store = SampleStore(trained.folder, read_only=True)
    assert {one.completion for kind in ("train", "eval") for one in store.page(step=1, kind=kind)} == {"x"}
    assert trained.sample(["p"]) == trained.sample_before(["p"]) == ["x"]
    assert trained.sample(["p"], temperature=0.01, seed=3) == ["x"]
    assert {one.completion for one in trained.evaluate_samples()[1]} == {"x"}
    assert "after   'x'\n" in vigneron("chat", trained.folder, stdin="hello\n").out
    assert "xy" not in vigneron("eval", trained.folder).out


def test_recorded_samples_keep_their_tokens_and_the_training_command_its_stop_strings(
    tmp_path: Path, tiny_folder: Path
) -> None:
    """Trained on by the model that wrote them, every weight is 1: the tokens are those that were sampled, without an
    end token behind the stop string."""
    recipe = config_in(tmp_path, tiny_folder, sampling={"stop": STOPS})
    recording = api.record_samples(recipe, out=tmp_path / "samples.jsonl", samples=4)
    rows = [json.loads(line) for line in recording.file.read_text().splitlines()]
    stopped = [row for row in rows if row["completion"].endswith(tuple(STOPS))]
    assert 5 < len(stopped) < len(rows)
    assert not any("truncated" in row for row in stopped)
    recording.file.write_text("".join(json.dumps(row | {"reward": -1.0}) + "\n" for row in stopped))
    assert f"sampling={json.dumps({'stop': STOPS})}" in training_overrides(recipe, recording, 4)
    keys = {"method": {"name": "topr"}, "model": {"name": str(tiny_folder), "device": "cpu"}, "steps": 1}
    keys |= {"data": {"train": str(recording.file)}, "sampling": {"stop": STOPS}, "prompts_per_step": len(stopped)}
    run = api.train(check_config({"recipe": "tiny", **keys}, "tiny"), runs=tmp_path, name="topr").folder
    assert RunFolder(run).metrics()[-1]["topr/weight"] == pytest.approx(1.0, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("lose", [lose_nothing, lose_rng])
def test_a_resumed_run_is_the_same(tmp_path: Path, trained_once: TrainedOnce, roomy_folder: Path, lose: Any) -> None:
    check_third_arm(trained_once("stop", lambda place: config_in(place, roomy_folder)), tmp_path, lose)
