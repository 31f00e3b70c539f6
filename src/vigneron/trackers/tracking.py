"""A run's side of its trackers: what they are given goes through a queue that is never waited for."""

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

QUEUED = 1000
"""Steps that wait for a tracker; beyond them the newest is left out."""
FINISH_WITHIN = 15.0
"""Seconds that a tracker has when the run is over; then it is ended."""
LOOKED_EVERY = 0.5
"""Seconds between looks whether it is still there."""
LARGEST_LOG = 2**16
WHOLE = "the run's own logs are whole"


class Tracker:
    """One process, one thread that writes to it, one queue between that thread and the run."""

    def __init__(self, name: str, run: Mapping[str, Any]) -> None:
        self.name = name
        self.complaints: queue.SimpleQueue[str] = queue.SimpleQueue()
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
                self.complaints.put(f"the tracker {self.name} does not keep up, and misses steps; {WHOLE}")

    def _write(self) -> None:
        """In its own thread. It may block for as long as the tracker does."""
        try:
            self._process = process = _started(self.name)
        except OSError as error:
            self.complaints.put(f"the tracker {self.name} could not be started: {error}")
            return
        assert process.stdin is not None
        assert process.stderr is not None
        heard: list[bytes] = []
        ear = threading.Thread(target=_listen, args=(process.stderr, heard), daemon=True)
        ear.start()
        try:
            while (line := self._next(process)) is not None:
                process.stdin.write(line.encode() + b"\n")
                process.stdin.flush()
            process.stdin.close()
        except (OSError, ValueError):  # it is gone, or its pipe is closed: why is what it said
            pass
        code = process.wait()
        ear.join(1.0)
        if code and not self._ending:
            why = _why(b"".join(heard)) or f"it ended with code {code}"
            self.complaints.put(f"the tracker {self.name} stopped ({why}); the run goes on, and {WHOLE}")

    def _next(self, process: "subprocess.Popen[bytes]") -> str | None:
        """None: there is nothing more to say, or nobody to say it to."""
        while process.poll() is None:
            try:
                return self._queue.get(timeout=LOOKED_EVERY)
            except queue.Empty:
                continue
        return None

    def close(self, until: float) -> None:
        try:
            self._queue.put_nowait(None)
        except queue.Full:
            self._end()
        self._thread.join(max(0.0, until - time.monotonic()))
        if self._thread.is_alive():
            self._ending = True
            self.complaints.put(f"the tracker {self.name} did not finish in time, and was ended; {WHOLE}")
            self._end()
            self._thread.join(1.0)

    def _end(self) -> None:
        """With all processes it started."""
        self._ending = True
        if self._process is not None and self._process.poll() is None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except OSError:
                return


class Tracking:
    """All trackers of a run. Of a failure each speaks once."""

    def __init__(self, names: Sequence[str], folder: Path, config: Mapping[str, Any]) -> None:
        run = {"name": folder.name, "folder": str(folder.resolve()), "config": config}
        self._trackers = [Tracker(name, {**run, "id": _identity(folder)}) for name in names]

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        if self._trackers:
            real = {k: v for k, v in metrics.items() if isinstance(v, int | float) and v == v}
            line = json.dumps({"step": step, "metrics": real})
            for tracker in self._trackers:
                tracker.log(line)

    def complaints(self) -> list[str]:
        found = []
        for tracker in self._trackers:
            while not tracker.complaints.empty():
                found.append(tracker.complaints.get())
        return found

    def close(self, *, at_once: bool = False) -> list[str]:
        until = time.monotonic() + (0.0 if at_once else FINISH_WITHIN)
        for tracker in self._trackers:
            tracker.close(until)
        found = self.take_warnings()
        self._trackers = []
        return found


def _started(name: str) -> "subprocess.Popen[bytes]":
    """In a session of its own: Ctrl-C in the terminal is the run's. -P: no file beside the user's is taken for it."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "vigneron.trackers.child", name],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def _listen(pipe: Any, heard: list[bytes]) -> None:
    """The last of what it says: the pipe must not fill up."""
    while chunk := pipe.read1(4096):
        heard.append(chunk)
        while sum(map(len, heard)) > LARGEST_LOG:
            heard.pop(0)


def _why(heard: bytes) -> str:
    lines = [line for line in heard.decode("utf-8", "replace").splitlines() if line.startswith("failed: ")]
    text = "".join(c for c in lines[-1].removeprefix("failed: ") if c.isprintable()) if lines else ""
    return text.rstrip(". ")


def _identity(folder: Path) -> str:
    """Kept in the folder: a run that is resumed is the same run to its trackers."""
    path = folder / "trackers.json"
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["id"])
    except (OSError, ValueError, KeyError, TypeError):
        made = uuid.uuid4().hex[:12]
        write_atomically(path, json.dumps({"id": made}))
        return made


def missing_trackers(names: Sequence[str]) -> list[str]:
    return [name for name in names if not _is_installed(name)]


def _is_installed(name: str) -> bool:
    """A folder of that name, as wandb makes one where it runs, is no package."""
    found = importlib.util.find_spec(name)
    return found is not None and found.origin is not None


def check_trackers(names: Sequence[str]) -> None:
    if missing := missing_trackers(names):
        raise UserError(
            f"trackers: {' and '.join(missing)} not installed: run `pip install {' '.join(missing)}`, "
            "or leave out `trackers`"
        )
