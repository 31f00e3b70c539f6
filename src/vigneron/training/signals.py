"""Ctrl-C, SIGTERM and SIGHUP (a closed terminal): finish and save the step, then exit; a second one exits
immediately."""

import errno
import os
import signal
import socket
import termios
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
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


STOPPING = "stopping after this step is finished and saved; press Ctrl-C again to stop immediately"
PATIENCE = 0.3
"""Seconds that Python's handler has to answer first."""


class StopRequest:
    """While active, the first signal sets `signal_number`; a second one has its default effect.

    Python calls a signal's handler between two of its instructions, and a pass of the model is one instruction of many
    seconds. The operating system's own handler writes the signal to a socket, and a thread answers it at once.
    """

    def __init__(self, notice: Callable[[str], None]) -> None:
        self.signal_number: int | None = None
        self._notice = notice
        self._before: dict[int, Any] = {}
        self._announced, self._handled = threading.Lock(), threading.Event()
        self._wakeup: socket.socket | None = None
        self._fd_before = -1

    def __enter__(self) -> "StopRequest":
        # Python delivers signals to the main thread only.
        if threading.current_thread() is threading.main_thread():
            reading, self._wakeup = socket.socketpair()
            self._wakeup.setblocking(False)
            threading.Thread(target=self._answer, args=(reading, handled_signals()), daemon=True).start()
            self._fd_before = signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)
            for number in handled_signals():
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._restore()
        if self._wakeup is not None:
            signal.set_wakeup_fd(self._fd_before)
            self._wakeup.close()  # which ends the thread
            self._wakeup = None

    def _answer(self, reading: socket.socket, handled: Sequence[int]) -> None:
        with reading, suppress(OSError):
            while received := reading.recv(1):
                if received[0] in handled and not self._handled.wait(PATIENCE):
                    self._announce(received[0])

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.signal_number = number
        self._handled.set()
        self._restore()
        if number == signal.SIGHUP:
            release_terminal()
        self._announce(number)

    def _announce(self, number: int) -> None:
        """Once, by the thread or by the handler. Neither waits for the other: it may hold the terminal's lock."""
        if self._announced.acquire(blocking=False):
            if number == signal.SIGHUP:
                release_terminal()
            self._notice(STOPPING)

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def leave(self, number: int) -> None:
        """Exit as for this signal, which this process or another rank has received."""
        raise Stopped(128 + number)
