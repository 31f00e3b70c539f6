"""Ray actors on a share of the GPU that trains: the same run as without them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from support.tiny_runs import tiny_config, tiny_recipe, write_data
from vigneron import api
from vigneron.remote.ray import weight_sync as sending
from vigneron.run_store.folder import RunFolder

pytest.importorskip("ray", reason="the extra `ray` is not installed")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

STEPS = 4
HERE: dict[str, Any] = {"sampling": {"kind": "here"}}
TWO_ACTORS: dict[str, Any] = {"sampling": {"kind": "ray", "actors": 2, "gpus": 0.3}}


def letters_by_seven(completions: list[str], **_: Any) -> list[float]:
    """Differs within nearly every group, so that each step changes the weights."""
    return [sum(map(ord, text)) % 7 / 6 for text in completions]


def trained(folder: Path, runs: Path, name: str, scale: dict[str, Any], dtype: str) -> Path:
    config = tiny_config(
        folder,
        write_data(runs),
        model={"name": str(folder), "device": "cuda", "dtype": dtype},
        method={"name": "grpo"},
        reward={"kind": "python", "function": f"{__name__}:letters_by_seven"},
        optimizer={"actor_lr": 1e-2},
        group_size=8,
        steps=STEPS,
        save_every=0,
        scale=scale,
    )
    return api.train(config, name=name, runs=runs).folder


@pytest.mark.parametrize("way", ["read", "store"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_same_run(
    tmp_path: Path, roomy_folder: Path, dtype: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "store":
        monkeypatch.setattr(sending, "gpu_uuid", lambda device: "another one")
    here = trained(roomy_folder, tmp_path, "here", HERE, dtype)
    by_actors = trained(roomy_folder, tmp_path, "by-actors", TWO_ACTORS, dtype)
    rel, absolute = (1e-3, 1e-4) if dtype == "float32" else (0.1, 0.05)
    for one, other in zip(RunFolder(here).metrics(), RunFolder(by_actors).metrics(), strict=True):
        assert one.keys() == other.keys()
        for key, value in one.items():
            if isinstance(value, float):
                assert other[key] == pytest.approx(value, rel=rel, abs=absolute), f"{key} at step {one['step']}"
    evaluations = [record["eval/reward"] for record in RunFolder(here).metrics() if "eval/reward" in record]
    assert abs(evaluations[-1] - evaluations[0]) > 0.2, "otherwise stale weights would go unnoticed"
    requests = [json.loads(line) for line in (by_actors / "sampling.jsonl").read_text().splitlines()]
    assert [line["version"] for line in requests if not line["greedy"]] == list(range(STEPS))


def test_a_run_ends_without_a_word_of_torch_s(tmp_path: Path, roomy_folder: Path) -> None:
    """It would warn of memory that others still have."""
    recipe = tiny_recipe(
        roomy_folder,
        write_data(tmp_path),
        model={"name": str(roomy_folder), "device": "cuda"},
        reward={"kind": "binary"},
        scale=TWO_ACTORS,
        steps=2,
    )
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(recipe))
    command = [sys.executable, "-m", "vigneron", "train", "tiny.yaml", "--name", "run"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert "Producer" not in done.stderr + done.stdout
    assert "CudaIPC" not in done.stderr + done.stdout
