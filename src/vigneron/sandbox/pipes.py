"""Lines to and from a program in a sandbox, without blocking."""

import os
import selectors
from typing import Any

from vigneron.sandbox.backends import MIB, RunningSandbox

MAX_LINE = 4 * MIB
MAX_SENT = 32 * MIB
MAX_ERRORS = 2000


class TooMuch(Exception):
    """A line is too long, or all lines together."""


class SandboxPipes:
    """The pipes of a running sandbox. `attach` registers them, with this object as the data of each key."""

    def __init__(self, running: RunningSandbox) -> None:
        self.running = running
        self._in, self._out, self._err = running.pipes
        self._unread, self._unsent, self.errors = b"", b"", b""
        self._received = 0
        self._selector: selectors.BaseSelector | None = None
        for pipe in running.pipes:
            os.set_blocking(pipe.fileno(), False)

    def attach(self, selector: selectors.BaseSelector) -> None:
        self._selector, self._received = selector, 0
        for pipe in (self._out, self._err):
            selector.register(pipe, selectors.EVENT_READ, self)
        if self._unsent:
            selector.register(self._in, selectors.EVENT_WRITE, self)

    def detach(self) -> None:
        """The selector is closed."""
        self._selector = None

    def lines(self, pipe: Any) -> list[bytes] | None:
        """What `pipe`, which is ready, brings: whole lines, or None if the program has ended. Raises `TooMuch`."""
        if pipe is self._in:
            self._write()
            return []
        try:
            data = os.read(pipe.fileno(), 65536)
        except BlockingIOError:
            return []
        if pipe is self._err:
            self.errors = (self.errors + data)[:MAX_ERRORS]
            if not data and self._selector is not None:
                self._selector.unregister(pipe)
            return []
        if not data:
            return None
        self._received += len(data)
        *whole, rest = data.split(b"\n")
        if whole:
            whole[0], self._unread = self._unread + whole[0], rest
        else:
            self._unread += rest
        if self._received > MAX_SENT or len(self._unread) > MAX_LINE:
            raise TooMuch
        return whole

    def send(self, line: bytes) -> None:
        self._unsent += line
        if self._selector is not None and self._in not in self._selector.get_map():
            self._selector.register(self._in, selectors.EVENT_WRITE, self)

    def _write(self) -> None:
        try:
            self._unsent = self._unsent[os.write(self._in.fileno(), self._unsent) :]
        except BlockingIOError:
            return
        except OSError:  # the program has ended: the other pipe reports that
            self._unsent = b""
        if not self._unsent and self._selector is not None:
            self._selector.unregister(self._in)

    def last_errors(self) -> bytes:
        """Standard error, after the program has ended."""
        self.running.process.wait()
        return (self.errors + (self._err.read() or b""))[:MAX_ERRORS]

    def end(self) -> None:
        self.running.end()
        for pipe in (self._in, self._out, self._err):
            pipe.close()
