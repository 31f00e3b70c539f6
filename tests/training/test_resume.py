"""A run that is killed and resumed is the run that was never killed, bit for bit."""

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer

from support import fault_runs
from support.resuming import (
    TrainedOnce,
    check_third_arm,
    drawing_reward,
    lose_controller,
    lose_critic,
    lose_nothing,
    lose_optimizers,
    lose_rng,
    lose_schedule,
)
from support.tiny_runs import final_state, tiny_config, tiny_recipe, write_data
from vigneron import api
from vigneron.errors import UserError
from vigneron.methods import build_method
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.samples import SampleStore
from vigneron.training import loop
from vigneron.training.callbacks import Silent
from vigneron.training.checkpoint.read import checkpoints
from vigneron.training.setup.start import start_run

LORA = {"lora": {"rank": 4}}
DRAWING = {"kind": "python", "function": f"{drawing_reward.__module__}:drawing_reward"}
GRPO = {
    "method": {"name": "grpo", "updates_per_step": 2, "kl": {"coefficient": 1e-3, "adaptive": {"target": 0.01}}},
    "optimizer": {"actor_lr": 1e-3, "schedule": "cosine", "warmup_steps": 2},
}


def recipe_file(folder: Path, tiny: Path, **changes: Any) -> Path:
    path = folder / "tiny.yaml"
    recipe = tiny_recipe(tiny, write_data(folder), **changes)
    path.write_text(yaml.safe_dump(recipe))
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kill_at", "model_changes", "saved_before"), [(1, {}, []), (5, LORA, [2, 4])], ids=["before a save", "LoRA"]
)
def test_killed_and_resumed_equals_uninterrupted(
    tiny_folder: Path, tmp_path: Path, kill_at: int, model_changes: dict[str, Any], saved_before: list[int]
) -> None:
    """`tests/faults/test_kills.py` has every method, killed after its first save."""
    model = {"name": str(tiny_folder), "device": "cpu", **model_changes}
    recipe = recipe_file(tmp_path, tiny_folder, model=model, steps=6, save_every=2, eval_every=3)
    whole = api.train(str(recipe), name="whole", runs=tmp_path).folder

    killed = fault_runs.exit_code(fault_runs.killed_at_step, str(recipe), str(tmp_path), "killed", kill_at)
    assert killed == -signal.SIGKILL
    folder = tmp_path / "killed"
    saved = [int(p.name.removeprefix("step-")) for p in checkpoints(folder / "checkpoints")]
    assert saved == saved_before
    api.resume(folder)
    assert final_state(folder) == final_state(whole)

    stores = [SampleStore(path, read_only=True) for path in (whole, folder)]
    pages = [[s.page(step=step) for step in s.steps("train")] for s in stores]
    assert pages[0] == pages[1]
    assert len(pages[0]) == 6


@pytest.mark.parametrize("lose", [lose_nothing, lose_optimizers, lose_critic, lose_controller, lose_schedule, lose_rng])
def test_every_part_of_the_state_is_needed(
    tiny_folder: Path, tmp_path: Path, trained_once: TrainedOnce, lose: Any
) -> None:
    """The third arm: resumed without any one part, the run comes out different; with all of them, the same."""

    def config_in(place: Path) -> Any:
        return tiny_config(tiny_folder, write_data(place), reward=DRAWING, steps=4, save_every=2, eval_every=0)

    check_third_arm(trained_once("actor_critic", config_in), tmp_path, lose)


@pytest.mark.slow
@pytest.mark.parametrize("lose", [lose_optimizers, lose_controller, lose_schedule, lose_rng])
def test_every_part_of_grpos_state_is_needed(
    tiny_folder: Path, tmp_path: Path, trained_once: TrainedOnce, lose: Any
) -> None:
    """The same without a critic."""

    def config_in(place: Path) -> Any:
        return tiny_config(tiny_folder, write_data(place), reward=DRAWING, steps=4, save_every=2, eval_every=0, **GRPO)

    check_third_arm(trained_once("grpo", config_in), tmp_path, lose)


@pytest.mark.slow
def test_two_processes_cannot_train_in_one_folder(tiny_folder: Path, tmp_path: Path) -> None:
    config = tiny_config(tiny_folder, write_data(tmp_path), steps=1)
    run = start_run(config, tmp_path, build_method, name="run", view=Silent())
    folder = run.folder
    assert fault_runs.exit_code(fault_runs.lock, str(folder.path)) == 3
    run.close()
    assert fault_runs.exit_code(fault_runs.lock, str(folder.path)) == 0


@pytest.mark.slow
def test_a_damaged_checkpoint_is_refused(tiny_folder: Path, tmp_path: Path) -> None:
    config = tiny_config(tiny_folder, write_data(tmp_path), steps=2, eval_every=0)
    folder = api.train(config, name="run", runs=tmp_path).folder
    weights = folder / "checkpoints" / "step-2" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(bytes(content))
    for use in (api.resume, api.load_run):
        with pytest.raises(UserError, match="damaged"):
            use(folder)


@pytest.mark.slow
def test_the_folder_holds_its_rows_and_changed_rows_or_another_base_are_refused(
    tiny_folder: Path, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    subprocess.run(["cp", "-r", str(tiny_folder), str(model)], check=True)
    data = write_data(tmp_path)
    folder = api.train(tiny_config(model, data, steps=2, eval_every=0), name="run", runs=tmp_path).folder
    data.unlink()
    assert api.resume(folder).step == 2

    rows = folder / "data" / "train.jsonl"
    original = rows.read_text()
    rows.write_text(original.replace("hot", "warm"))
    with pytest.raises(UserError, match=r"train\.jsonl .* that differs is row 1"):
        api.resume(folder)
    rows.write_text(original)
    changed = AutoModelForCausalLM.from_pretrained(model)
    with torch.no_grad():
        changed.model.norm.weight.add_(0.5)
    changed.save_pretrained(model)
    with pytest.raises(UserError, match="other weights"):
        api.resume(folder)


def test_a_run_that_cannot_start_leaves_its_name_free(tiny_folder: Path, tmp_path: Path) -> None:
    data = write_data(tmp_path)
    with pytest.raises(UserError, match="config"):
        api.train(tiny_config(tmp_path, data, steps=1), name="run", runs=tmp_path)
    assert api.train(tiny_config(tiny_folder, data, steps=1), name="run", runs=tmp_path).step == 1
    with pytest.raises(UserError, match="exists"):
        api.train(tiny_config(tiny_folder, data, steps=1), name="run", runs=tmp_path)
    assert api.load_run(tmp_path / "run").step == 1
    with pytest.raises(UserError, match="not a valid run name"):
        api.train(tiny_config(tiny_folder, data, steps=1), name="../run", runs=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("model_changes", [{}, LORA])
def test_a_checkpoint_is_a_transformers_folder_with_the_trained_weights(
    tiny_folder: Path, tmp_path: Path, model_changes: dict[str, Any]
) -> None:
    model = {"name": str(tiny_folder), "device": "cpu", **model_changes}
    config = tiny_config(tiny_folder, write_data(tmp_path), steps=3, eval_every=0, model=model)
    trained = api.train(config, name="run", runs=tmp_path)
    path = trained.folder / "checkpoints" / "step-3"
    loaded = AutoModelForCausalLM.from_pretrained(path)
    tokenizer = AutoTokenizer.from_pretrained(path)
    assert tokenizer.chat_template
    ids = torch.tensor([tokenizer("say hot: ")["input_ids"]])
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).logits, trained.policy.model(ids).logits)
        start = AutoModelForCausalLM.from_pretrained(tiny_folder)(ids).logits
    assert not torch.allclose(start, loaded(ids).logits, atol=1e-4)
    # And by our own way: the child after and before.
    again = api.load_run(trained.folder)
    assert again.sample(["say hot: "]) == trained.sample(["say hot: "])
    with again.reference.active() as before:
        torch.testing.assert_close(before.logits(before.hidden(ids, torch.arange(ids.shape[1])[None])), start)
    assert not list(trained.folder.rglob("*.pt"))
    assert not list(trained.folder.rglob("*.bin"))
    json.loads((path / "state" / "scalars.json").read_text())


@pytest.mark.slow
def test_old_checkpoints_go_and_drafts_never_count(tiny_folder: Path, tmp_path: Path) -> None:
    config = tiny_config(tiny_folder, write_data(tmp_path), steps=5, save_every=1, keep_last=2, eval_every=0)
    folder = api.train(config, name="run", runs=tmp_path).folder
    assert [p.name for p in checkpoints(folder / "checkpoints")] == ["step-4", "step-5"]
    # A kill during a save leaves a draft without a manifest.
    (folder / "checkpoints" / ".step-9.draft").mkdir()
    (folder / "checkpoints" / "step-9").mkdir()
    assert [p.name for p in checkpoints(folder / "checkpoints")] == ["step-4", "step-5"]


def test_a_save_that_fails_leaves_the_checkpoint_before_it_whole(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config(tiny_folder, write_data(tmp_path), steps=2, save_every=1, eval_every=0)
    run = start_run(config, tmp_path, build_method, name="run", view=Silent())
    folder = run.folder
    rename = Path.rename

    def full(self: Path, target: Path) -> Path:
        if self.name.startswith(".step-2"):
            raise OSError(28, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(UserError, match="No space left"):
        loop.train(run, Silent())
    run.close()
    assert [p.name for p in checkpoints(folder.checkpoints)] == ["step-1"]
    assert not list(folder.checkpoints.glob(".step*"))


def test_a_lost_line_at_the_end_of_the_metrics_is_left_out(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "run", exact_name=True)
    for step in range(3):
        folder.append("metrics.jsonl", {"step": step, "reward": float("nan")})
    with (folder.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "rew')
    assert [record["step"] for record in folder.metrics()] == [0, 1, 2]
    assert folder.metrics()[0]["reward"] is None
    folder.forget_after(1)
    assert [record["step"] for record in folder.metrics()] == [0, 1]


def test_a_full_disk_while_tensors_are_written_leaves_no_draft(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """safetensors has an error class of its own for it."""

    def full(*_: Any, **__: Any) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("vigneron.training.checkpoint.write.save_file", full)
    config = tiny_config(tiny_folder, write_data(tmp_path), steps=1, eval_every=0)
    with pytest.raises(UserError, match=r"cannot write the checkpoint .*No space left on device"):
        api.train(config, runs=tmp_path, name="run")
    assert list((tmp_path / "run" / "checkpoints").iterdir()) == []
