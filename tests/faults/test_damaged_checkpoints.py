"""Rows 4 and 5: a damaged checkpoint is passed over and named; one without its optimizers is refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support import fault_runs
from support.tiny_runs import Listener, final_state
from vigneron import api
from vigneron.errors import UserError
from vigneron.training.checkpoint.read import MANIFEST, TENSORS, checkpoints, fault_of


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Path:
    """A finished run with checkpoints of steps 4 and 6."""
    place = tmp_path_factory.mktemp("trained")
    recipe = fault_runs.write_recipe(place, tiny_folder, "actor_critic", eval_every=0)
    return api.train(str(recipe), name="run", runs=place).folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def damage(path: Path, where: float, bit: int, how: str) -> None:
    content = bytearray(path.read_bytes())
    at = min(int(where * len(content)), len(content) - 1)
    if how == "flip":
        content[at] ^= 1 << bit
    else:
        del content[at:]
    path.write_bytes(bytes(content))


@pytest.mark.slow
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pick=st.integers(0, 10**6),
    where=st.floats(0, 1, allow_nan=False),
    bit=st.integers(0, 7),
    how=st.sampled_from(["flip", "cut", "missing"]),
)
def test_row_4_no_damage_to_any_file_goes_unseen(trained: Path, pick: int, where: float, bit: int, how: str) -> None:
    checkpoint = trained / "checkpoints" / "step-6"
    files = sorted(p for p in checkpoint.rglob("*") if p.is_file())
    file = files[pick % len(files)]
    whole = file.read_bytes()
    before = json.loads((checkpoint / MANIFEST).read_text())
    try:
        if how == "missing":
            file.unlink()
        else:
            damage(file, where, bit, how)
        unchanged = file.name == MANIFEST and _same_json(file, before)  # another kind of blank between its entries
        assert (fault_of(checkpoint) is None) == unchanged
    finally:
        file.write_bytes(whole)


def _same_json(file: Path, before: Any) -> bool:
    try:
        return bool(json.loads(file.read_text()) == before)
    except (OSError, ValueError):
        return False


@pytest.mark.parametrize("name", ["model.safetensors", TENSORS, MANIFEST])
def test_row_4_the_one_before_is_taken_and_this_is_said(run: Path, trained: Path, name: str) -> None:
    damage(run / "checkpoints" / "step-6" / name, 0.6, 1, "flip")
    listener = Listener()
    assert api.resume(run, view=listener).step == 6
    assert any("step-6 is damaged" in text and (name in text or name == MANIFEST) for text in listener.notices)
    assert any("resuming after step 4" in text for text in listener.notices)
    assert final_state(run) == final_state(trained)
    assert (run / "checkpoints" / "damaged-step-6").is_dir()
    assert [path.name for path in checkpoints(run / "checkpoints")] == ["step-4", "step-6"]


def test_row_4_who_only_looks_is_told_which_are_whole(run: Path) -> None:
    damage(run / "checkpoints" / "step-6" / "model.safetensors", 0.9, 3, "cut")
    with pytest.raises(UserError, match=r"step-6' is damaged: model.safetensors does not .* \(intact: step-4\)"):
        api.load_run(run)
    assert api.load_run(run, step=4).step == 4
    shutil.rmtree(run / "checkpoints" / "step-4")
    with pytest.raises(UserError, match=r"no checkpoint of .* is intact \(step-6: model.safetensors .* train again"):
        api.resume(run)


def test_row_5_without_optimizers_only_the_weights_alone_go_on(run: Path) -> None:
    (run / "checkpoints" / "step-6" / TENSORS).unlink()
    with pytest.raises(UserError, match=r"has no optimizer state .* --weights-only"):
        api.resume(run)
    listener = Listener()
    assert api.resume(run, "steps=7", weights_only=True, view=listener).step == 7
    assert any("start fresh" in text for text in listener.notices)
    assert [path.name for path in checkpoints(run / "checkpoints")] == ["step-6", "step-7"]
