"""Asynchronous runs on a real Ray cluster: bounded, corrected, repeatable, resumed exactly; and ranks with actors."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file

from support.processes import vigneron
from support.ray_clusters import Here, local_cluster, ray_config, samples_of, write_data
from support.tiny_runs import final_state
from vigneron import api
from vigneron.run_store.folder import RunFolder

pytest.importorskip("ray", reason="the extra `ray` is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.cluster]


@pytest.fixture
def nodes() -> Iterator[Any]:
    with local_cluster(1, 2) as cluster:
        yield cluster


def options(**changes: Any) -> dict[str, Any]:
    return {
        "method": {"name": "grpo", "updates_per_step": 2},
        "optimizer": {"actor_lr": 1e-2},
        "group_size": 4,
        "prompts_per_step": 4,
        "steps": 9,
        "eval_every": 0,
        "save_every": 5,
        **changes,
    }


@pytest.mark.usefixtures("nodes")
@pytest.mark.parametrize("staleness", [1, 3])
def test_versions_are_as_old_as_asked_and_a_run_can_be_repeated(
    tmp_path: Path, tiny_folder: Path, staleness: int
) -> None:
    config = ray_config(tiny_folder, write_data(tmp_path), scale={"staleness": staleness}, **options())
    runs = [api.train(config, name=name, runs=tmp_path).folder for name in ("one", "two")]
    records = RunFolder(runs[0]).metrics()
    expected = {1: [0, 0, 1, 2, 3, 5, 5, 6, 7], 3: [0, 0, 0, 0, 1, 5, 5, 5, 5]}[staleness]
    assert [record["version"] for record in records] == expected
    assert [record["staleness"] for record in records] == [step - v for step, v in enumerate(expected)]
    sampled = [json.loads(line) for line in (runs[0] / "sampling.jsonl").read_text().splitlines()]
    assert [(record["step"] - 1, record["version"]) for record in sampled] == list(enumerate(expected))
    for record in records:
        stale = record["staleness"] > 0
        assert (record["importance/gap"] > 1e-4) == stale
        assert record["importance/mean"] == pytest.approx(1.0, abs=0.5 if stale else 1e-3)
        assert record["logprob_mismatch"] < 1e-4, "ratios begin at 1, whoever sampled"
    assert samples_of(runs[0]) == samples_of(runs[1])
    assert final_state(runs[0])["model.safetensors"] == final_state(runs[1])["model.safetensors"]


@pytest.mark.usefixtures("nodes")
def test_stopped_and_resumed_equals_uninterrupted(tmp_path: Path, tiny_folder: Path) -> None:
    """At a checkpoint no samples are on their way: the run that goes on from it is the run."""

    class Interrupted(Exception): ...

    def interrupt(run: Any) -> None:
        raise Interrupted

    config = ray_config(tiny_folder, write_data(tmp_path), scale={"staleness": 1}, **options())
    whole = api.train(config, name="whole", runs=tmp_path).folder
    with pytest.raises(Interrupted):
        api.train(config, name="cut", runs=tmp_path, view=Here(step_7=interrupt))
    cut = api.resume(tmp_path / "cut").folder
    assert final_state(cut) == final_state(whole)


@pytest.mark.parametrize("more", [["--nproc", "2"], ["--nproc", "2", "scale.shard=2"]])
def test_ranks_that_train_and_actors_that_sample(tmp_path: Path, tiny_folder: Path, more: list[str]) -> None:
    """The first rank asks the actors; where ranks share the weights, it has them all gathered for that."""
    data = write_data(tmp_path)
    recipe = ray_config(tiny_folder, data, **options(steps=3, save_every=0, reward={"kind": "binary"}))
    given = recipe.model_dump(mode="json", exclude_unset=True)
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(given))
    vigneron(tmp_path, "train", "tiny.yaml", "scale.sampling={kind: here}", "--name", "here")
    vigneron(tmp_path, "train", "tiny.yaml", "--name", "there", *more)
    runs = [tmp_path / "runs" / name for name in ("here", "there")]
    assert samples_of(runs[0]) == samples_of(runs[1])
    weights = [load_file(run / "checkpoints" / "step-3" / "model.safetensors") for run in runs]
    for name, tensor in weights[0].items():
        assert (tensor - weights[1][name]).abs().max() < 1e-4
