"""Ctrl-C and SIGTERM: the step is finished and saved, then the process ends; a second signal ends it at once."""

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any


class Stopped(SystemExit):
    """Training ended because it was asked to; the exit code is the shell's for the signal."""

    finished: Path | None = None
    """The run's folder, where the step that was waited for was its last."""


class StopRequest:
    """While active, the first signal sets `asked`; the second one has its ordinary effect."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.asked: int | None = None
        self._tell = tell
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopRequest":
        # Python delivers signals to the main thread only; in another one there is nothing to catch.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._restore()

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = number
        self._restore()
        self._tell("stopping: this step is finished and saved first; once more stops at once")

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def leave(self, number: int) -> None:
        """By a signal that this process was sent, or another one of its run."""
        raise Stopped(128 + number)
