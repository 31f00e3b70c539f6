"""Damaged logs, lost samples, a closed terminal, too little memory before training: each is reported in one line."""

import ctypes
import os
import pty
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command_line import vigneron, write_recipe
from support.tiny_runs import Listener
from vigneron import api
from vigneron.distributed.launch import _SignalForwarder
from vigneron.run_store.damage import damage_of
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.run_details import run_details
from vigneron.training.signals import StopRequest, release_terminal


@pytest.fixture
def run(tmp_path: Path, tiny_folder: Path) -> Path:
    recipe = write_recipe(tmp_path, tiny_folder, save_every=1, eval_every=1)
    return api.train(str(recipe), name="run", runs=tmp_path).folder


@pytest.mark.slow
def test_a_damaged_line_and_lost_samples_are_noticed(run: Path) -> None:
    assert damage_of(run) == []
    before = RunFolder(run).metrics()
    lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (run / "metrics.jsonl").write_bytes(lines[0] + lines[1][:10] + b"\xff\n" + b"".join(lines[2:]) + b'{"step": 9')
    for name in ("samples.sqlite", "samples.sqlite-wal", "samples.sqlite-shm"):
        (run / name).unlink(missing_ok=True)
    damaged, lost = damage_of(run)
    assert damaged == "metrics.jsonl: damaged and left out: line 2"
    assert lost == "samples.sqlite is missing"
    assert {damaged, lost} <= {notice.text for notice in run_details(run).notices}
    assert "samples.sqlite is missing" in vigneron("show", run).out
    assert RunFolder(run).metrics() == [before[0], *before[2:]]
    answer = vigneron("report", run)
    assert answer.code == 0, answer.err
    assert damaged in (run / "report.html").read_text(encoding="utf-8")

    listener = Listener()
    api.resume(run, "steps=3", view=listener)
    assert {damaged, lost} <= set(listener.notices)
    assert [record["step"] for record in RunFolder(run).metrics()] == [1, 3]
    assert RunFolder(run).metrics()[0] == before[0]
    assert damage_of(run) == []
    assert "damaged and left out: line 2" in (run / "notices.jsonl").read_text(encoding="utf-8")


def test_many_damaged_lines_are_counted(tmp_path: Path) -> None:
    (tmp_path / "timings.jsonl").write_text('{"step": 1}\n' + "[]\n" * 5 + '{"step": true}\n', encoding="utf-8")
    assert damage_of(tmp_path) == ["timings.jsonl: damaged and left out: line 2, 3, 4 and 3 more"]


@pytest.fixture
def hangup() -> Iterator[None]:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangup")
def test_a_hangup_is_a_request_to_stop_unless_it_is_ignored() -> None:
    said: list[str] = []
    with StopRequest(said.append) as stop:
        os.kill(os.getpid(), signal.SIGHUP)
        assert stop.signal_number == signal.SIGHUP
    assert said
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nohup
    with StopRequest(said.append) as stop:
        os.kill(os.getpid(), signal.SIGHUP)
        assert stop.signal_number is None


@pytest.mark.usefixtures("hangup")
def test_a_signal_is_answered_while_a_long_call_keeps_python_from_handling_it() -> None:
    """The main thread is in a call outside Python that only the answer ends; another thread gets the signal."""
    answered, tell = os.pipe()
    ready, done = threading.Event(), threading.Event()
    other = threading.Thread(target=lambda: (ready.set(), done.wait()))
    with StopRequest(lambda text: os.write(tell, text.encode()[:8])) as stop:
        other.start()
        ready.wait()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=lambda: signal.pthread_kill(other.ident or 0, signal.SIGTERM)).start()
        text = ctypes.create_string_buffer(8)
        assert ctypes.CDLL(None).read(answered, text, 8) == 8
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        done.set()
        other.join()
        assert (text.value, stop.signal_number) == (b"stopping", signal.SIGTERM)
    os.close(answered)
    os.close(tell)


@pytest.fixture
def ignored_interrupt() -> Iterator[None]:
    """As in a job that `sh` started with `&`."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ignored_interrupt")
def test_an_interrupt_is_a_request_to_stop_in_a_background_job_too() -> None:
    with StopRequest(lambda _: None) as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.signal_number == signal.SIGINT
    with _SignalForwarder([]) as forwarder:
        os.kill(os.getpid(), signal.SIGINT)
        assert forwarder.first_signal == signal.SIGINT


def test_a_closed_terminal_does_not_break_the_last_lines() -> None:
    master, terminal = pty.openpty()
    other, alive = pty.openpty()
    os.close(master)
    with pytest.raises(OSError, match="Input/output error"):
        os.write(terminal, b"a")
    release_terminal([terminal, alive])
    os.write(terminal, b"a")
    os.write(alive, b"b")
    assert os.read(other, 10) == b"b"
    for handle in (terminal, other, alive):
        os.close(handle)


def test_too_little_memory_is_one_line(tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_much(*_: object, **__: object) -> bytes:
        return bytes(2**62)

    recipe = write_recipe(tmp_path, tiny_folder)
    monkeypatch.setattr("vigneron.training.setup.start.load_data", too_much)
    answer = vigneron("train", recipe, "--runs", tmp_path)
    assert answer.code == 2
    (line,) = answer.err.splitlines()
    assert line.startswith("error: out of memory: the machine has too little memory for this command")
    assert not list(tmp_path.glob("*/config.yaml"))
