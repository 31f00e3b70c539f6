"""Ctrl-C, SIGTERM and SIGHUP (a closed terminal): finish and save the step, then exit; a second one exits
immediately."""

import errno
import os
import signal
import termios
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from vigneron.distributed.stop_signals import handled_signals


class Stopped(SystemExit):
    """Training stopped on a signal; the exit code is 128 + the signal's number."""

    finished: Path | None = None
    """The run's folder, if that step was its last."""


def release_terminal(handles: Sequence[int] = (1, 2)) -> None:
    """Send output to nowhere where its terminal is closed: writing to it would fail before the step is saved."""
    for handle in handles:
        try:
            termios.tcgetattr(handle)
        except termios.error as error:
            if error.args[0] == errno.EIO:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, handle)
                os.close(nowhere)


class StopRequest:
    """While active, the first signal sets `signal_number`; a second one has its default effect."""

    def __init__(self, notice: Callable[[str], None]) -> None:
        self.signal_number: int | None = None
        self._notice = notice
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopRequest":
        # Python delivers signals to the main thread only.
        if threading.current_thread() is threading.main_thread():
            for number in handled_signals():
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._restore()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.signal_number = number
        self._restore()
        if number == signal.SIGHUP:
            release_terminal()
        self._notice("stopping after this step is finished and saved; press Ctrl-C again to stop immediately")

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def leave(self, number: int) -> None:
        """Exit as for this signal, which this process or another rank has received."""
        raise Stopped(128 + number)
