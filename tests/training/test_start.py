"""The start of a run: what it shows, what it records, and how the base model is identified."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, safe_open, save_file

from support import fault_runs
from support.command_line import write_recipe
from support.tiny_runs import Listener, final_state, run_python, tiny_config, write_data
from vigneron import api
from vigneron.errors import UserError
from vigneron.policy.load import load_policy
from vigneron.policy.weight_files import hash_of_files, weight_files
from vigneron.timing import inner_phase, phase, phase_hooks, reporting_phases, take_start
from vigneron.training.checkpoint import base_identity
from vigneron.training.checkpoint.read import read_scalars, weights_identity

QUICK: dict[str, Any] = {
    "method": {"name": "grpo"},
    "reward": {"kind": "binary"},
    "optimizer": {"actor_lr": 1e-3},
    "steps": 2,
    "prompts_per_step": 2,
    "eval_every": 0,
    "save_every": 1,
}
STAGES = [
    "read the data",
    "check the recipe",
    "load the model",
    "copy the reference",
    "prepare the model",
    "check the data",
    "see what fits into memory",
    "prepare the sampler",
    "hash the weights",
    "rollout",
    "reward",
    "advantage",
    "update",
]


class Watcher(Listener):
    def __init__(self) -> None:
        super().__init__()
        self.phases: list[str] = []

    def phase(self, text: str | None) -> None:
        if text is not None:
            self.phases.append(text)


def test_a_run_reports_and_records_the_phases_of_its_start(tmp_path: Path, tiny_folder: Path) -> None:
    config = tiny_config(tiny_folder, write_data(tmp_path), **QUICK)
    watcher = Watcher()
    run = api.train(config, name="run", runs=tmp_path, view=watcher).folder
    assert watcher.phases[: len(STAGES)] == STAGES
    first, second = (json.loads(line) for line in (run / "timings.jsonl").read_text().splitlines())
    assert list(first["start"]) == [*STAGES, "keep samples", "other", "total"]
    parts = [seconds for name, seconds in first["start"].items() if name != "total"]
    assert sum(parts) == pytest.approx(first["start"]["total"], abs=0.005 * len(parts) + 0.005)
    assert "start" not in second


def test_time_in_a_phase_inside_another_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("vigneron.timing.time.perf_counter", lambda: clock[0])
    told: list[str | None] = []

    def passes(seconds: float) -> None:
        clock[0] += seconds

    with reporting_phases(told.append):
        with phase("load", "3.1 GB"):
            passes(1)
        with phase("update"):
            passes(2)
            begin, end = phase_hooks("compile")
            begin("any argument")
            passes(4)
            with inner_phase("capture"):
                passes(32)
            end()
            with phase("inside"):
                passes(8)
        passes(16)
        with reporting_phases(told.append):  # the API inside the command line
            assert take_start() == {"load": 1, "update": 10, "compile": 4, "capture": 32} | {"other": 16, "total": 63}
            assert take_start() is None
    assert told == ["load (3.1 GB)", None, "update", "compile", "capture", "compile", "update", None]
    assert take_start() is None


@pytest.mark.slow
def test_the_command_shows_itself_before_torch_is_imported() -> None:
    code = "import sys, vigneron.commands.train; print('torch' in sys.modules, 'matplotlib' in sys.modules)"
    assert run_python(code).stdout.split() == ["False", "False"]


@pytest.mark.slow
def test_a_log_names_the_stages_from_the_first(tmp_path: Path, tiny_folder: Path) -> None:
    recipe = write_recipe(tmp_path, tiny_folder)
    log = tmp_path / "log"
    words = ["train", str(recipe), "--runs", str(tmp_path / "runs"), "--name", "a"]
    assert fault_runs.exit_code(fault_runs.command, str(log), words) == 0, log.read_text()
    shown = log.read_text().splitlines()
    assert [line.partition(" s, ")[2] for line in shown if line.startswith("start: ")] == [
        "importing torch and transformers",
        "reading the data",
        "checking the recipe",
        "loading the model",
        "copying the reference",
        "preparing the model",
        "checking the data",
        "measuring how many tokens fit into memory",
        "preparing the sampler",
        "hashing the weights",
        "sampling",
        "waiting for rewards",
        "updating",
    ]
    assert shown[0].startswith("start: 0.")
    start = json.loads((tmp_path / "runs" / "a" / "timings.jsonl").read_text().splitlines()[0])["start"]
    assert next(iter(start)) == "import"


def by_hand(file: Path) -> str:
    """The hash of small tensors, which are one piece each."""
    whole = hashlib.sha256()
    with safe_open(file, framework="pt") as opened:
        names = opened.keys()
        parts = {name: (opened.get_slice(name).get_dtype(), opened.get_tensor(name)) for name in names}
    for label, tensor in sorted((json.dumps([n, dtype, list(t.shape)]), t) for n, (dtype, t) in parts.items()):
        whole.update(f"{label}\0{0:08d}\0".encode())
        whole.update(hashlib.sha256(tensor.view(torch.uint8).numpy().tobytes()).digest())
    return whole.hexdigest()


def test_the_hash_is_of_the_tensors_however_they_are_stored(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file,) = weight_files(str(tiny_folder))
    known = hash_of_files([file])
    assert known == by_hand(file)
    weights = load_file(file)
    names = sorted(weights)
    halves = {"b.safetensors": names[::2], "a.safetensors": names[1::2]}
    for part, held in halves.items():
        save_file({name: weights[name] for name in held}, tmp_path / part, metadata={"format": "pt", "other": "x"})
    index = {"weight_map": {name: part for part, held in halves.items() for name in held}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "config.json").write_text("{}")
    files = weight_files(str(tmp_path))
    assert [part.name for part in files] == ["a.safetensors", "b.safetensors"]
    assert hash_of_files(files) == known
    changed = {**weights, names[0]: weights[names[0]].clone()}
    changed[names[0]].view(-1)[-1] += 1e-3
    save_file(changed, tmp_path / "changed.safetensors")
    assert hash_of_files([tmp_path / "changed.safetensors"]) != known
    monkeypatch.setattr("vigneron.policy.weight_files.CHUNK", 1000)  # several pieces of a tensor
    pieces = hash_of_files([file])
    assert pieces == hash_of_files(files) != known
    assert hash_of_files([tmp_path / "changed.safetensors"]) not in (known, pieces)
    (tmp_path / "a.safetensors").write_bytes(b"\xff" * 20)
    with pytest.raises(UserError, match="cannot read its weights"):
        hash_of_files(files)


@pytest.mark.slow
@pytest.mark.parametrize("version", ["of the loaded weights", "of the files"])
def test_a_run_resumes_by_the_identity_that_it_recorded(
    version: str, tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs of the first versions recorded a hash of the loaded weights, without a mark."""
    base = tmp_path / "base"
    base.mkdir()
    for file in tiny_folder.iterdir():
        (base / file.name).write_bytes(file.read_bytes())
    config = tiny_config(base, write_data(tmp_path), **QUICK)
    old = weights_identity(str(base), load_policy(str(base), device="cpu"))
    with monkeypatch.context() as first_version:
        if version == "of the loaded weights":
            first_version.setattr(base_identity, "weight_files", lambda name: [])
        run = api.train(config, name="run", runs=tmp_path).folder
    recorded = read_scalars(run / "checkpoints" / "step-1")["base"]
    new = {"name": str(base), "sha256": hash_of_files(weight_files(str(base))), "of": "files"}
    assert recorded == (old if version == "of the loaded weights" else new)
    whole = final_state(run)
    (run / "checkpoints" / "step-2").rename(tmp_path / "away")
    api.resume(run)
    assert final_state(run) == whole, "with the identity in its scalars"
    weights = load_file(base / "model.safetensors")
    weights[min(weights)].view(-1)[0] += 1e-3
    save_file(weights, base / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match="other weights than"):
        api.resume(run, "steps=3")
