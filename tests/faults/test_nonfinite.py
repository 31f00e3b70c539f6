"""Row 10: NaN or Inf in a loss, a gradient or a reward. No update, the batch is kept, the run stops or goes on."""

import json
from dataclasses import fields
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from support import fault_runs
from support.small_batch import make_batch
from vigneron import api
from vigneron.errors import UserError
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.status import status_of
from vigneron.training.checkpoint.read import checkpoints
from vigneron.training.output import dump_batch

# By the count of calls in this process, without those on two rows before a run: a reward that is broken at one step, or
# so large that the gradient overflows.
BROKEN = """
calls = 0
def broken(completions, **columns):
    global calls
    calls += len(completions) > 2
    rewards = [float(len(str(c))) for c in completions]
    if calls in {at}:
        rewards[1] = {value}
    return rewards
"""


numbers = count()


@pytest.fixture(autouse=True)
def _importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))


def recipe(tmp_path: Path, model: Path, value: str, at: tuple[int, ...] = (3,), **changes: Any) -> str:
    name = f"broken_reward_{next(numbers)}"
    (tmp_path / f"{name}.py").write_text(BROKEN.format(value=value, at=at))
    reward = {"kind": "python", "function": f"{name}:broken"}
    return str(fault_runs.write_recipe(tmp_path, model, "grpo", eval_every=0, reward=reward, **changes))


@pytest.mark.parametrize("value", ["float('nan')", "float('-inf')", "3e38"])
def test_row_10_the_run_stops_and_the_batch_is_kept(tmp_path: Path, tiny_folder: Path, value: str) -> None:
    with pytest.raises(UserError, match=r"step 3: .*dumps/step-3.*skip_nonfinite=1`"):
        api.train(recipe(tmp_path, tiny_folder, value), name="run", runs=tmp_path)
    folder = tmp_path / "run"
    assert status_of(folder).state == "failed"
    assert "step 3" in (status_of(folder).error or "")
    assert [path.name for path in checkpoints(folder / "checkpoints")] == ["step-2"]
    dump = folder / "dumps" / "step-3"
    said = json.loads((dump / "batch.json").read_text())
    tensors = load_file(dump / "batch.safetensors")
    assert len(said["completions"]) == len(said["prompts"]) == tensors["completion_BT"].shape[0] == 8
    if value == "3e38":
        assert tensors["rewards_B"].max() > 1e38
    else:
        assert said["extras"]["returned"][1] == value.split("'")[1]


@pytest.mark.parametrize("value", ["float('nan')", pytest.param("3e38", marks=pytest.mark.slow)])
def test_row_10_so_many_are_passed_over_and_counted(tmp_path: Path, tiny_folder: Path, value: str) -> None:
    file = recipe(tmp_path, tiny_folder, value, at=(2, 4), skip_nonfinite=2)
    folder = api.train(file, name="run", runs=tmp_path).folder
    records = RunFolder.open(folder).metrics()
    assert [record["steps_skipped"] for record in records] == [0, 1, 1, 2, 2, 2]
    assert ["grad_norm/actor" in record for record in records] == [True, False, True, False, True, True]
    assert sorted(p.name for p in (folder / "dumps").iterdir()) == ["step-2", "step-4"]
    # The count goes on with the run, and a third one is too many.
    file = recipe(tmp_path, tiny_folder, value, at=(2, 4, 5), skip_nonfinite=2)
    with pytest.raises(UserError, match=r"step 5: .*skip_nonfinite=3`"):
        api.train(file, name="third", runs=tmp_path)
    assert [path.name for path in checkpoints(tmp_path / "third" / "checkpoints")] == ["step-2", "step-4"]


@pytest.mark.slow
def test_row_10_a_step_that_is_passed_over_leaves_nothing_behind(tmp_path: Path, tiny_folder: Path) -> None:
    """The weights after it are those before it, also in the optimizers' state."""
    file = recipe(tmp_path, tiny_folder, "3e38", at=(3,), skip_nonfinite=1, save_every=1, keep_last=9)
    folder = api.train(file, name="run", runs=tmp_path).folder
    one, other = (folder / "checkpoints" / f"step-{step}" for step in (2, 3))
    assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
    states = [load_file(path / "state" / "tensors.safetensors") for path in (one, other)]
    assert all(bool((states[0][key] == states[1][key]).all()) for key in states[0])


def test_row_10_hidden_states_are_not_kept(tmp_path: Path) -> None:
    """Of a step of a large model they are gigabytes, and follow from the weights and the tokens."""
    batch = make_batch([3, 2], [2, 4])
    names = [field.name for record in (batch.samples, batch.signals) for field in fields(record)]
    hidden = [name for name in names if "hidden" in name]
    states = {name: torch.zeros(2, 4, 8) for name in hidden if name.endswith("BTH")}
    assert len(states) > 2
    dump_batch(tmp_path, 1, batch.with_signals(**states), "a test")
    assert not load_file(tmp_path / "dumps" / "step-1" / "batch.safetensors").keys() & set(hidden)
