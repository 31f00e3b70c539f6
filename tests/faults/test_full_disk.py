"""Row 6: the disk is full in a save or in a log. Old checkpoints are whole, and the run goes on once there is room."""

import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import fault_runs
from support.tiny_runs import final_state
from vigneron import api
from vigneron.errors import UserError
from vigneron.run_store.status import status_of
from vigneron.training.checkpoint.read import checkpoints, fault_of

pytestmark = pytest.mark.slow

SIZE = 1_500_000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, in memory."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("may not mount a small file system here; the test with a limit on files' sizes stands for it")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


class Fills:
    """Leaves no room after a step."""

    def __init__(self, at_step: int, file: Path) -> None:
        self.at_step, self.file = at_step, file

    def notice(self, text: str) -> None: ...

    def step(self, run: Any, *_: Any) -> None:
        if run.step == self.at_step:
            with self.file.open("wb", buffering=0) as file:
                try:
                    while True:
                        file.write(bytes(4096))
                except OSError:
                    pass


@pytest.mark.parametrize("when", ["in a save", "in a log"])
def test_row_6_a_full_disk(small_disk: Path, tmp_path: Path, tiny_folder: Path, when: str) -> None:
    recipe = fault_runs.write_recipe(tmp_path, tiny_folder, "grpo", eval_every=0)
    filler = Fills(2 if when == "in a log" else 3, small_disk / "filler")
    with pytest.raises(UserError, match=r"cannot write .*(No space left|disk is full|disk I/O)") as said:
        api.train(str(recipe), name="run", runs=small_disk, view=filler)
    assert "\n" not in str(said.value)
    folder = small_disk / "run"
    status = status_of(folder)
    assert status.state == "failed"
    assert status.error == str(said.value)
    saved = checkpoints(folder / "checkpoints")
    assert [fault_of(path) for path in saved] == [None] * len(saved)
    assert not list(folder.rglob("*.draft"))

    with pytest.raises(UserError, match="cannot write"):  # still no room
        api.resume(folder)
    filler.file.unlink()
    api.resume(folder)
    whole = api.train(str(recipe), name="whole", runs=tmp_path).folder
    assert final_state(folder) == final_state(whole)


def test_row_6_files_may_not_grow(tmp_path: Path, tiny_folder: Path) -> None:
    """By a limit of the process: a checkpoint's largest file does not fit. The command line says so in one line."""
    recipe = fault_runs.write_recipe(tmp_path, tiny_folder, "grpo", eval_every=0, save_every=1)
    words = ["train", str(recipe), "--name", "run", "--runs", str(tmp_path)]
    log = tmp_path / "log"
    code = fault_runs.exit_code(fault_runs.command, str(log), words, (resource.RLIMIT_FSIZE, 105_000))
    assert code == 2
    errors = [line for line in log.read_text().splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "cannot write" in errors[0]
    assert "File too large" in errors[0]
    assert "Traceback" not in log.read_text()
    assert status_of(tmp_path / "run").state == "failed"
    assert not list((tmp_path / "run").rglob("*.draft"))
    api.resume(tmp_path / "run")
    assert status_of(tmp_path / "run").state == "finished"
