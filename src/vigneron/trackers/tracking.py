"""The run's side of its trackers: metrics go through a queue, and the run never waits for it."""

import importlib.util
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vigneron.errors import UserError
from vigneron.files import write_atomically
from vigneron.trackers.webhook import NOTICES, check_webhook

QUEUED = 1000
"""Steps in a tracker's queue; when it is full, new steps are dropped."""
FINISH_WITHIN = 15.0
"""Seconds that a tracker has to finish when the run ends; then it is killed."""
POLL_S = 0.5
"""Seconds between checks that the process is alive."""
LARGEST_LOG = 2**16
COMPLETE = "the run's own logs are complete"


class Tracker:
    """One process, a thread that writes to it, and a queue between that thread and the run."""

    def __init__(self, name: str, run: Mapping[str, Any]) -> None:
        self.name = name
        self.warnings: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._queue: queue.Queue[str | None] = queue.Queue(QUEUED)
        self._dropped = False
        self._process: subprocess.Popen[bytes] | None = None
        self._ending = False
        self._queue.put(json.dumps(run))
        self._thread = threading.Thread(target=self._write, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def log(self, line: str) -> None:
        try:
            self._queue.put_nowait(line)
        except queue.Full:
            if not self._dropped:
                self._dropped = True
                self.warnings.put(f"the tracker {self.name} is too slow and misses steps; {COMPLETE}")

    def _write(self) -> None:
        """Runs in its own thread, and may block for as long as the tracker does."""
        try:
            self._process = process = _start(self.name)
        except OSError as error:
            self.warnings.put(f"the tracker {self.name} could not be started: {error}")
            return
        assert process.stdin is not None
        assert process.stderr is not None
        output: list[bytes] = []
        reader = threading.Thread(target=_read, args=(process.stderr, output), daemon=True)
        reader.start()
        try:
            while (line := self._next(process)) is not None:
                process.stdin.write(line.encode() + b"\n")
                process.stdin.flush()
            process.stdin.close()
        except (OSError, ValueError):  # the process has exited or its pipe is closed: stderr has the reason
            pass
        code = process.wait()
        reader.join(1.0)
        if code and not self._ending:
            why = _failure(b"".join(output)) or f"exit code {code}"
            self.warnings.put(f"the tracker {self.name} stopped ({why}); the run continues, and {COMPLETE}")

    def _next(self, process: "subprocess.Popen[bytes]") -> str | None:
        """The next line to write; None if the run has closed the tracker or the process has exited."""
        while process.poll() is None:
            try:
                return self._queue.get(timeout=POLL_S)
            except queue.Empty:
                continue
        return None

    def close(self, until: float) -> None:
        try:
            self._queue.put_nowait(None)
        except queue.Full:
            self._kill()
        self._thread.join(max(0.0, until - time.monotonic()))
        if self._thread.is_alive():
            self._ending = True
            self.warnings.put(f"the tracker {self.name} did not finish in time and was killed; {COMPLETE}")
            self._kill()
            self._thread.join(1.0)

    def _kill(self) -> None:
        """Kill the process and all processes that it started."""
        self._ending = True
        if self._process is not None and self._process.poll() is None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except OSError:
                return


class Tracking:
    """All trackers of a run. Each reports a failure once."""

    def __init__(self, names: Sequence[str], folder: Path, config: Mapping[str, Any]) -> None:
        run = {
            "name": folder.name,
            "folder": str(folder.resolve()),
            "config": config,
            "notices": _size(folder / NOTICES),
        }
        self._trackers = [Tracker(name, {**run, "id": _identity(folder)}) for name in names]

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        if self._trackers:
            real = {k: v for k, v in metrics.items() if isinstance(v, int | float) and v == v}
            line = json.dumps({"step": step, "metrics": real})
            for tracker in self._trackers:
                tracker.log(line)

    def take_warnings(self) -> list[str]:
        """Warnings since the last call."""
        warnings = []
        for tracker in self._trackers:
            while not tracker.warnings.empty():
                warnings.append(tracker.warnings.get())
        return warnings

    def close(self, *, at_once: bool = False) -> list[str]:
        """Close all trackers; the remaining warnings. `at_once`: do not wait for them to finish."""
        until = time.monotonic() + (0.0 if at_once else FINISH_WITHIN)
        for tracker in self._trackers:
            tracker.close(until)
        warnings = self.take_warnings()
        self._trackers = []
        return warnings


def _start(name: str) -> "subprocess.Popen[bytes]":
    """In a new session, so that Ctrl-C does not reach it. -P keeps files of the working folder from being imported."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "vigneron.trackers.worker", name],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def _read(pipe: Any, output: list[bytes]) -> None:
    """Keep the end of the output, and keep the pipe from filling up."""
    while chunk := pipe.read1(4096):
        output.append(chunk)
        while sum(map(len, output)) > LARGEST_LOG:
            output.pop(0)


def _failure(output: bytes) -> str:
    lines = [line for line in output.decode("utf-8", "replace").splitlines() if line.startswith("failed: ")]
    text = "".join(c for c in lines[-1].removeprefix("failed: ") if c.isprintable()) if lines else ""
    return text.rstrip(". ")


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _identity(folder: Path) -> str:
    """The run's id for trackers, kept in its folder so that a resumed run continues the same one."""
    path = folder / "trackers.json"
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["id"])
    except (OSError, ValueError, KeyError, TypeError):
        new = uuid.uuid4().hex[:12]
        write_atomically(path, json.dumps({"id": new}))
        return new


def missing_trackers(names: Sequence[str]) -> list[str]:
    return [name for name in names if not _is_installed(name)]


def _is_installed(name: str) -> bool:
    """A folder of the same name, such as the one wandb creates, does not count."""
    if name == "webhook":
        return True
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.origin is not None


def check_trackers(names: Sequence[str]) -> None:
    if "webhook" in names:
        check_webhook()
    if missing := missing_trackers(names):
        raise UserError(
            f"trackers: {' and '.join(missing)} not installed: run `pip install {' '.join(missing)}` "
            "or remove `trackers`"
        )
