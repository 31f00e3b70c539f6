"""The comparison of `benchmarks.same_runs`: equal folders are equal, and every kind of difference is found."""

import json
import math
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.equality.cases import all_cases
from benchmarks.equality.compare import Renames, compare_runs
from benchmarks.equality.sides import with_new_keys

WEIGHT = torch.tensor([1.0, 2.0, float("nan")])


def write_run(
    folder: Path,
    *,
    metrics: dict[str, Any] | None = None,
    completion: str = "b",
    weight: torch.Tensor = WEIGHT,
    tensor: str = "w",
    scalar: float = 0.5,
) -> Path:
    state = folder / "checkpoints" / "step-2" / "state"
    state.mkdir(parents=True)
    lines = [{"step": step, **(metrics or {"kl": 0.1, "reward": None})} for step in (1, 2)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    save_file({tensor: weight}, state.parent / "model.safetensors")
    save_file({"actor.exp_avg": torch.zeros(())}, state / "tensors.safetensors")
    (state / "scalars.json").write_text(json.dumps({"config": {"key": str(folder)}, "kl": {"coefficient": scalar}}))
    with sqlite3.connect(folder / "samples.sqlite") as db:
        db.execute("CREATE TABLE samples (step, kind, sample, prompt, completion, extras)")
        db.execute("INSERT INTO samples VALUES (1, 'train', 0, 'a', ?, ?)", (completion, json.dumps({"origin": 1})))
    db.close()
    return folder


def test_equal_folders_are_equal(tmp_path: Path) -> None:
    found = compare_runs(write_run(tmp_path / "old"), write_run(tmp_path / "new"), Renames())
    assert found.difference is None
    assert (found.steps, found.metrics, found.samples, found.tensors) == (2, 4, 1, 2)


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"metrics": {"kl": math.nextafter(0.1, 1.0), "reward": None}}, "step 1: kl: 0.1 != 0.10000000000000002"),
        ({"metrics": {"kl": 0.1, "reward": 0}}, "step 1: reward: None != 0"),
        ({"metrics": {"kl": 0.1}}, "step 1: reward is missing in NEW"),
        ({"completion": "c"}, "sample train 1/0: completion: 'b' != 'c'"),
        ({"weight": WEIGHT.nextafter(torch.tensor(9.0))}, "model.safetensors: w differs by up to"),
        ({"weight": WEIGHT[:2].clone()}, "model.safetensors: w differs: torch.float32 (3,) != torch.float32 (2,)"),
        ({"tensor": "v"}, "model.safetensors: w is missing in NEW"),
        ({"scalar": 0.25}, "scalars.json: kl.coefficient: 0.5 != 0.25"),
    ],
)
def test_a_difference_is_found(tmp_path: Path, changes: dict[str, Any], difference: str) -> None:
    found = compare_runs(write_run(tmp_path / "old"), write_run(tmp_path / "new", **changes), Renames())
    assert found.difference is not None
    assert found.difference.startswith(difference)


def test_renamed_names_are_the_same(tmp_path: Path) -> None:
    old = write_run(tmp_path / "old")
    new = write_run(tmp_path / "new", metrics={"kl/reference": 0.1, "reward": None}, tensor="v")
    assert compare_runs(old, new, Renames({"kl": "kl/reference"}, tensors={"w": "v"})).difference is None
    assert compare_runs(old, new, Renames({"kl": "kl/other"}, tensors={"w": "v"})).difference is not None


def test_a_run_without_files_is_not_equal(tmp_path: Path) -> None:
    assert compare_runs(tmp_path / "a", tmp_path / "b", Renames()).difference is not None


def test_keys_of_recipes_are_renamed() -> None:
    given = {"method": {"name": "grpo", "kl": {"against": "previous"}}, "steps": 3}
    names = {"method.kl.against": "method.kl.anchor", "steps": "run.steps", "not.there": "x"}
    assert with_new_keys(given, names) == {
        "method": {"name": "grpo", "kl": {"anchor": "previous"}},
        "run": {"steps": 3},
    }
    assert given["steps"] == 3


def test_every_run_of_a_case_has_its_own_folder() -> None:
    runs = [run for case in all_cases().values() for run in case.runs]
    assert len(runs) == len(set(runs))
