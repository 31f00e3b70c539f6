"""Sandboxes in which tests run. Bubblewrap's are kept: each test has a process forked in one, and leaves nothing."""

import os
import selectors
import threading
import time
from collections import defaultdict

from vigneron.sandbox.backends import Limits, Sandbox, children_of
from vigneron.sandbox.pipes import SandboxPipes, TooMuch

# Time for a test's process to end after it has sent its result.
END_S = 5.0
OVER = b'["over",'


class Tester:
    """A sandbox with the program `tester`."""

    def __init__(self, sandbox: Sandbox, limits: Limits) -> None:
        self.sandbox = sandbox
        self.pipes = SandboxPipes(sandbox.start(limits, "tester"))
        self.started = False
        self.unread: list[bytes] = []
        self._processes = 0

    @property
    def pid(self) -> int:
        return self.pipes.running.process.pid

    def alive(self) -> bool:
        return self.pipes.running.process.poll() is None

    def note_started(self) -> None:
        self.started, self._processes = True, _processes(self.pid)

    def clean_end(self) -> bool:
        """Wait until the test's process has ended; whether it left no file and no process."""
        lines, self.unread = self.unread, []
        deadline = time.monotonic() + END_S
        with selectors.DefaultSelector() as selector:
            self.pipes.attach(selector)
            try:
                while not any(line.startswith(OVER) for line in lines):
                    ready = selector.select(deadline - time.monotonic())
                    if not ready:
                        return False
                    for key, _ in ready:
                        more = self.pipes.lines(key.fileobj)
                        if more is None:
                            return False
                        lines += more
            except TooMuch:
                return False
            finally:
                self.pipes.detach()
        return lines[-1] == OVER + b" true]" and _processes(self.pid) == self._processes


def _processes(pid: int) -> int:
    return 1 + sum(_processes(child) for child in children_of(pid))


_lock = threading.Lock()
_idle: defaultdict[tuple[int, Sandbox], list[Tester]] = defaultdict(list)
"""By process: a forked process must not share the pipes."""


def _after_fork() -> None:
    """Another thread may have held the lock."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def borrow(sandbox: Sandbox, limits: Limits, *, new: bool = False) -> Tester:
    """A new one has these limits. Raises OSError if none can be started."""
    with _lock:
        idle = _idle[os.getpid(), sandbox]
        while idle and not new:
            tester = idle.pop()
            if tester.alive():
                return tester
            tester.pipes.end()
    return Tester(sandbox, limits)


def give_back(tester: Tester) -> None:
    with _lock:
        _idle[os.getpid(), tester.sandbox].append(tester)


def end_idle() -> None:
    """End all that no test uses."""
    with _lock:
        testers = [tester for (pid, _), idle in _idle.items() if pid == os.getpid() for tester in idle]
        _idle.clear()
    for tester in testers:
        tester.pipes.end()
