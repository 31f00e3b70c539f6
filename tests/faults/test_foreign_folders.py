"""Rows 7 and 8: a folder that cannot be written, or in which somebody trains, is refused before a model is loaded."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import fault_runs
from vigneron import api
from vigneron.errors import UserError
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.status import status_of

pytestmark = pytest.mark.slow

NOBODY = 65534


@pytest.fixture
def killed(tmp_path: Path, tiny_folder: Path) -> Path:
    """A run that was killed, and whose model is gone: whoever tries to load it says something else."""
    model = Path(shutil.copytree(tiny_folder, tmp_path / "model"))
    recipe = fault_runs.write_recipe(tmp_path, model, "grpo", eval_every=0)
    assert fault_runs.exit_code(fault_runs.killed_at_step, str(recipe), str(tmp_path), "run", 3) == -signal.SIGKILL
    shutil.rmtree(model)
    return tmp_path / "run"


@pytest.fixture
def read_only(killed: Path) -> Iterator[Path]:
    bind = ["mount", "--bind", str(killed), str(killed)]
    if subprocess.run(bind, capture_output=True).returncode:
        killed.chmod(0o555)
        if os.access(killed, os.W_OK):
            pytest.skip("may neither mount here nor be kept from writing")
        yield killed
        killed.chmod(0o755)
        return
    subprocess.run(["mount", "-o", "remount,bind,ro", str(killed)], check=True)
    yield killed
    subprocess.run(["umount", "-l", str(killed)], check=True)


def test_row_7_a_read_only_folder(read_only: Path, tmp_path: Path, tiny_folder: Path) -> None:
    with pytest.raises(UserError, match=r"cannot write in .*Read-only|cannot write in .*denied"):
        api.resume(read_only)
    recipe = fault_runs.write_recipe(tmp_path / "other", tmp_path / "no-model", "grpo")
    with pytest.raises(UserError, match=r"cannot (create|write)"):
        api.train(str(recipe), name="new", runs=read_only)
    assert status_of(read_only).state == "killed"


@pytest.mark.skipif(os.getuid() != 0, reason="needs to be root to become somebody else")
def test_row_7_a_folder_of_somebody_else(killed: Path) -> None:
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        folder = Path(shutil.copytree(killed, Path(place) / "run"))
        log = Path(place) / "log"
        log.touch(0o666)
        code = fault_runs.exit_code(fault_runs.command, str(log), ["resume", str(folder)], None, NOBODY)
        assert (code, log.read_text().count("error: ")) == (2, 1), log.read_text()
        assert "cannot write in" in log.read_text()
        folder.chmod(0o777)  # its folder may be written, its checkpoints not
        (folder / ".lock").chmod(0o666)
        code = fault_runs.exit_code(fault_runs.command, str(log), ["resume", str(folder)], None, NOBODY)
        assert code == 2
        assert "check its owner and permissions" in log.read_text()


def test_row_8_two_runs_in_one_folder(tmp_path: Path, tiny_folder: Path) -> None:
    recipe = fault_runs.write_recipe(tmp_path, tiny_folder, "grpo", steps=100_000, eval_every=0)
    first, second = tmp_path / "first.log", tmp_path / "second.log"
    words = ["train", str(recipe), "--name", "run", "--runs", str(tmp_path)]
    process = fault_runs.started(fault_runs.command, str(first), words)
    while not first.exists() or "step 1/" not in first.read_text():
        assert process.is_alive(), first.read_text()
        time.sleep(0.02)
    assert status_of(tmp_path / "run").state == "running"
    for attempt in (["resume", str(tmp_path / "run")], words):
        assert fault_runs.exit_code(fault_runs.command, str(second), attempt) == 2
        (line,) = (line for line in second.read_text().splitlines() if not line.startswith("start: "))
        assert "another process is training" in line or "exists" in line
    assert process.is_alive()
    process.kill()
    process.join()
    assert status_of(tmp_path / "run").state == "killed"
    RunFolder.open(tmp_path / "run").lock()  # the lock went with its process
