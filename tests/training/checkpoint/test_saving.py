"""A checkpoint is the state of its step, however long it takes to write and whatever is trained meanwhile."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from support.minimal_recipe import line_of
from support.tiny_runs import tiny_config, write_data
from vigneron import api
from vigneron.errors import UserError
from vigneron.methods import build_method
from vigneron.training import loop
from vigneron.training.callbacks import Silent
from vigneron.training.checkpoint import write as saving
from vigneron.training.checkpoint.read import checkpoints
from vigneron.training.checkpoint.snapshot import take_snapshot
from vigneron.training.checkpoint.write import best_checkpoint, delete_drafts, save_checkpoint
from vigneron.training.run import Run
from vigneron.training.setup.start import start_run

REWARD = {"kind": "binary"}


def start(tmp_path: Path, tiny_folder: Path, **changes: Any) -> Run:
    options = {"reward": REWARD, "eval_every": 0, "save_every": 0, "steps": 6, **changes}
    config = tiny_config(tiny_folder, write_data(tmp_path), **options)
    return start_run(config, tmp_path, build_method, name="run", view=Silent())


def files_of(checkpoint: Path) -> dict[str, bytes]:
    return {str(p.relative_to(checkpoint)): p.read_bytes() for p in checkpoint.rglob("*") if p.is_file()}


def made(run: Run, steps: int) -> None:
    for _ in range(steps):
        loop.one_step(run)
        run.step += 1


@pytest.mark.slow
@pytest.mark.parametrize("lora", [None, {"rank": 4}])
def test_what_is_trained_during_a_slow_save_is_not_in_it(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, lora: Any
) -> None:
    run = start(tmp_path, tiny_folder, model={"name": str(tiny_folder), "device": "cpu", "lora": lora})
    go_on, finish = threading.Event(), saving.finish_checkpoint

    def slow(*arguments: Any) -> Path:
        assert go_on.wait(600)
        return finish(*arguments)

    made(run, 2)
    expected = _written_at_once(run, tmp_path / "at-once")
    monkeypatch.setattr(saving, "finish_checkpoint", slow)
    run.save()
    made(run, 2)
    assert not checkpoints(run.folder.checkpoints)
    go_on.set()
    run.output.saver.wait()
    (saved,) = checkpoints(run.folder.checkpoints)
    assert files_of(saved) == expected
    monkeypatch.undo()
    assert _written_at_once(run, tmp_path / "later") != expected
    run.close()


def _written_at_once(run: Run, folder: Path) -> dict[str, bytes]:
    """As it stands, without a copy, in this thread."""
    taken: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vigneron.training.checkpoint.snapshot.free_host_memory", lambda: 0.0)
        patch.setattr(run.output.saver, "save", taken.append)
        run.save()
    assert not taken[0].copied
    return files_of(save_checkpoint(folder, run.policy, taken[0]))


def test_without_room_for_a_copy_the_state_is_written_at_once(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start(tmp_path, tiny_folder)
    made(run, 1)
    copied = take_snapshot(run.policy, 1, {}, {})
    assert all(copied.weights[k].data_ptr() != v.data_ptr() for k, v in run.policy.model.state_dict().items())
    monkeypatch.setattr("vigneron.training.checkpoint.snapshot.free_host_memory", lambda: 0.0)
    run.save()
    assert [path.name for path in checkpoints(run.folder.checkpoints)] == ["step-1"]  # nobody waited
    run.close()


def test_a_save_that_fails_ends_the_run_with_its_line(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start(tmp_path, tiny_folder, save_every=1)

    def broken(*_: Any) -> None:
        raise UserError("the disk is on fire")

    monkeypatch.setattr(saving, "finish_checkpoint", broken)
    with pytest.raises(UserError, match="on fire"):
        loop.train(run, Silent())
    assert run.step <= 2
    run.close()


def test_leftovers_are_swept(tmp_path: Path) -> None:
    for name in ("checkpoints/.step-9.draft/state", "data"):
        (tmp_path / name).mkdir(parents=True)
    for name in (".config.yaml.draft", "checkpoints/.best.json.draft", "checkpoints/.step-9.draft/state/a", "kept"):
        (tmp_path / name).touch()
    delete_drafts(tmp_path)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["checkpoints", "data", "kept"]


def falling_after_two(completions: list[str], **columns: Any) -> list[float]:
    """By what is asked: held-out rows say `name`. Their reward is best at the second evaluation; the two calls before
    the run come first."""
    if not str(columns["prompts"][0]).startswith("name"):
        return [float(len(text)) for text in completions]
    value = [0.0, 0.0, 0.1, 0.5, 0.9, 0.3, 0.2, 0.9][len(EVALUATED)]
    EVALUATED.append(value)
    return [value] * len(completions)


EVALUATED: list[float] = []


@pytest.mark.slow
def test_the_best_is_kept_beside_the_last_and_recorded(tmp_path: Path, tiny_folder: Path) -> None:
    EVALUATED.clear()
    reward = {"kind": "python", "function": f"{__name__}:falling_after_two"}
    keys = {"reward": reward, "eval_every": 1, "save_every": 1, "keep_last": 2, "keep_best": "eval/reward", "steps": 5}
    folder = api.train(tiny_config(tiny_folder, write_data(tmp_path), **keys), name="run", runs=tmp_path).folder
    kept = checkpoints(folder / "checkpoints")
    assert [path.name for path in kept] == ["step-2", "step-4", "step-5"]  # 0.9 twice: the earlier one
    best = json.loads((folder / "checkpoints" / "best.json").read_text())
    assert best == {"step": 2, "figure": "eval/reward", "value": pytest.approx(0.9)}
    assert best_checkpoint(folder / "checkpoints", "eval/reward") == (kept[0], pytest.approx(0.9))


def test_an_unknown_figure_is_refused_as_soon_as_the_figures_are_known(tmp_path: Path, tiny_folder: Path) -> None:
    run = start(tmp_path, tiny_folder, eval_every=2, save_every=2, keep_best="eval/acuracy")
    with pytest.raises(UserError, match=r"no held-out metric .*'eval/acuracy' \(did you mean 'eval/accuracy'"):
        loop.train(run, Silent())
    assert run.step == 0
    run.close()


def test_the_best_can_be_known() -> None:
    assert "save_every" in line_of(keep_best="eval/reward", eval_every=3, save_every=4)
    assert "set `eval_every`" in line_of(keep_best="eval/reward", eval_every=0)
    assert "eval/reward" in line_of(keep_best="reward")
