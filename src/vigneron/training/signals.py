"""Ctrl-C and SIGTERM: finish and save the step, then exit; a second signal exits immediately."""

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any


class Stopped(SystemExit):
    """Training stopped on a signal; the exit code is 128 + the signal's number."""

    finished: Path | None = None
    """The run's folder, if that step was its last."""


class StopRequest:
    """While active, the first signal sets `signal_number`; a second one has its default effect."""

    def __init__(self, notice: Callable[[str], None]) -> None:
        self.signal_number: int | None = None
        self._notice = notice
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopRequest":
        # Python delivers signals to the main thread only.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._restore()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.signal_number = number
        self._restore()
        self._notice("stopping after this step is finished and saved; press Ctrl-C again to stop immediately")

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def leave(self, number: int) -> None:
        """Exit as for this signal, which this process or another rank has received."""
        raise Stopped(128 + number)
