"""What a run is doing, read from its folder alone."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vigneron.errors import UserError
from vigneron.run_store import status
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.status import last_records, run_folders, status_of, write_status


def made(path: Path, *records: dict[str, object], steps: int = 10) -> Path:
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(f"recipe: vines\nmethod: {{name: grpo}}\nsteps: {steps}\n")
    (path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_a_run_in_short(tmp_path: Path) -> None:
    path = made(tmp_path / "a", {"step": 1, "reward": 0.1}, {"step": 2, "reward": 0.5, "eval/accuracy": None})
    write_status(RunFolder(path), "running", began=5.0)
    write_status(RunFolder(path), "finished", ended=9.0)
    found = status_of(path)
    assert (found.name, found.state, found.recipe, found.method) == ("a", "finished", "vines", "grpo")
    assert (found.step, found.steps, found.began, found.ended) == (2, 10, 5.0, 9.0)
    assert found.metrics == {"reward": 0.5}
    assert found.changed is not None


@pytest.mark.parametrize("state", ["finished", "stopped", "failed"])
def test_an_end_that_was_said(tmp_path: Path, state: status.State) -> None:
    path = made(tmp_path / "a")
    write_status(RunFolder(path), state, error="the disk is full" if state == "failed" else None)
    assert status_of(path).state == state
    assert status_of(path).error == ("the disk is full" if state == "failed" else None)


def test_alive_while_its_process_is_and_killed_after(tmp_path: Path) -> None:
    path = made(tmp_path / "a")
    code = (
        "import sys; from pathlib import Path; from vigneron.run_store.folder import RunFolder;"
        "from vigneron.run_store.status import write_status;"
        "f = RunFolder(Path(sys.argv[1])); f.lock(); print('locked', flush=True); sys.stdin.readline();"
        "write_status(f, 'running'); print('running', flush=True); sys.stdin.readline()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stdout.readline() == "locked\n"
    assert status_of(path).state == "starting"
    child.stdin.write("\n")
    child.stdin.flush()
    assert child.stdout.readline() == "running\n"
    assert status_of(path).state == "running"
    assert status_of(path).alive
    child.kill()
    child.wait()
    assert status_of(path).state == "killed"


def test_a_process_that_a_killed_run_has_forked_does_not_keep_its_lock(tmp_path: Path) -> None:
    path = made(tmp_path / "a")
    code = (
        "import os, sys, time; from pathlib import Path; from vigneron.run_store.folder import RunFolder\n"
        "folder = RunFolder(Path(sys.argv[1])); folder.lock()\n"
        "child = os.fork()\n"
        "if child == 0:\n    sys.stdin.readline(); os._exit(0)\n"
        "print('forked', flush=True); time.sleep(1000)"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stdout.readline() == "forked\n"
    assert RunFolder(path).is_locked()
    child.kill()
    child.wait()
    try:
        resumed = RunFolder(path)
        resumed.lock()  # the forked process is still alive
        resumed.unlock()
    finally:
        child.stdin.close()


def test_looking_never_keeps_a_run_from_starting(tmp_path: Path) -> None:
    path = made(tmp_path / "a")
    code = (
        "import sys; from pathlib import Path; from vigneron.run_store.folder import RunFolder\n"
        "print('looking', flush=True)\nwhile True: RunFolder(Path(sys.argv[1])).is_locked()"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    child.stdout.readline()
    try:
        for _ in range(30):
            folder = RunFolder(path)
            folder.lock()
            folder.unlock()
    finally:
        child.kill()
        child.wait()


def test_runs_and_those_of_a_comparison_are_listed_hidden_ones_are_not(tmp_path: Path) -> None:
    for name in ("b", "a", "compared/one", "compared/two", ".hidden", "compared/.draft"):
        made(tmp_path / name)
    (tmp_path / "empty").mkdir()
    (tmp_path / "a file").write_text("")
    assert [str(p.relative_to(tmp_path)) for p in run_folders(tmp_path)] == ["a", "b", "compared/one", "compared/two"]
    with pytest.raises(UserError, match="train a run first"):
        run_folders(tmp_path / "nowhere")


def test_only_the_end_of_a_long_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f'{{"step": {step}}}\n' for step in range(1000)) + '{"step": 1000')
    monkeypatch.setattr(status, "TAIL_BYTES", 100)
    found = last_records(path)
    assert found[-1] == {"step": 999}, "a line that a kill cut short is left out"
    assert 1 < len(found) < 10
    assert [record["step"] for record in found] == list(range(1000 - len(found), 1000))


@given(st.binary(max_size=300))
def test_whatever_lies_in_the_files_a_status_is_found(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("run")
    for name in ("config.yaml", "metrics.jsonl", "status.json"):
        (path / name).write_bytes(content)
    assert status_of(path).state in ("killed", "finished", "stopped", "failed")
