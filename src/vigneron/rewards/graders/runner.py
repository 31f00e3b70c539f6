"""Run code with one test in a sandbox, and watch its time, memory and messages from outside."""

import json
import os
import secrets
import selectors
import shutil
import sys
import time
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from vigneron.errors import UserError
from vigneron.rewards.graders.assertions import NotPlain, PreparedTest, prepared
from vigneron.rewards.graders.sandbox import (
    IMAGE,
    MIB,
    Bubblewrap,
    Container,
    Limits,
    RunningSandbox,
    Sandbox,
    resource_usage,
)

# Time for the sandbox to start on a busy machine.
START_S = 30.0
# Interval between checks of memory and CPU time.
POLL_S = 0.05
MAX_SENT = 4 * MIB
MAX_REASON = 200


@dataclass(frozen=True)
class SandboxResult:
    """`broken`: the sandbox itself failed."""

    end: Literal["passed", "code failed", "test failed", "broken"]
    why: str = ""
    clock_timeout: bool = False
    """The wall-clock limit ended it, not the CPU limit."""


def run_test(sandbox: Sandbox, limits: Limits, code: str, test: PreparedTest) -> SandboxResult:
    """Run the code with one test; leaves no process behind. The test passes if it returns the token that it gets after
    the code has run, every value it sends is right, and no required check is missing."""
    try:
        running = sandbox.start(limits)
    except OSError as error:
        return SandboxResult("broken", f"it cannot be started: {error}")
    session = _Session(running, limits, code, test)
    try:
        return session.result()
    finally:
        running.end()
        session.close()


def probe(sandbox: Sandbox, limits: Limits | None = None) -> str | None:
    """Why the sandbox does not work; None if it does."""
    result = run_test(
        sandbox, limits or Limits(), "def double(x):\n    return 2 * x", prepared("assert double(21) == 42")
    )
    return None if result.end == "passed" else result.why


@cache
def find_sandbox() -> Sandbox:
    """The first that runs a trivial program; a `UserError` if none does."""
    failures = []
    for sandbox in candidates():
        why = probe(sandbox)
        if why is None:
            return sandbox
        failures.append(f"{sandbox.name} does not work here ({why})")
    raise UserError(
        "code is only run in a sandbox, and none works on this machine: "
        f"{'; '.join(failures) or 'neither bubblewrap nor podman or docker is installed'}. Install bubblewrap 0.8 or "
        f"newer (`apt install bubblewrap`), or podman or docker with the image {IMAGE} pulled"
    )


def candidates() -> list[Sandbox]:
    sandboxes: list[Sandbox] = []
    if bwrap := shutil.which("bwrap"):
        own = os.path.realpath(sys.executable)
        prefix = None if Path(sys.base_prefix).is_relative_to("/usr") else sys.base_prefix
        sandboxes.append(Bubblewrap(bwrap, own, prefix))
        if (system := os.path.realpath("/usr/bin/python3")) != own and os.path.exists(system):
            sandboxes.append(Bubblewrap(bwrap, system, None))
    sandboxes += [Container(program) for name in ("podman", "docker") if (program := shutil.which(name))]
    return sandboxes


class _Session:
    """The exchange of messages with `inside.py`."""

    def __init__(self, running: RunningSandbox, limits: Limits, code: str, test: PreparedTest) -> None:
        self._process, self._limits, self._test = running.process, limits, test
        self._is_container = running.container is not None
        self._token = secrets.token_hex(16)
        self._stage: Literal["start", "code", "test"] = "start"
        self._made: set[int] = set()
        self._received, self._unread, self._errors = 0, b"", b""
        self._code = code
        self._unsent = b""
        self._cpu_before = 0.0
        self._selector = selectors.DefaultSelector()
        self._in, self._out, self._err = running.pipes
        for pipe in running.pipes:
            os.set_blocking(pipe.fileno(), False)
            if pipe is not self._in:
                self._selector.register(pipe, selectors.EVENT_READ)

    def result(self) -> SandboxResult:
        deadline, poll_at = time.monotonic() + START_S, 0.0
        while (left := deadline - time.monotonic()) > 0:
            for key, _ in self._selector.select(min(POLL_S, left)):
                before = self._stage
                result = self._handle(key.fileobj)
                if result is not None:
                    return result
                if before == "start" != self._stage:
                    deadline = time.monotonic() + self._limits.clock_s
            if time.monotonic() >= poll_at:
                poll_at = time.monotonic() + POLL_S
                if (result := self._over_limit()) is not None:
                    return result
        if self._stage == "start":
            return SandboxResult("broken", f"it did not start within {START_S:g} s{self._stderr()}")
        return replace(self._failed(f"it did not end within {self._limits.clock_s:g} s"), clock_timeout=True)

    def _over_limit(self) -> SandboxResult | None:
        if self._is_container:
            return None
        used = resource_usage(self._process.pid)
        if used.memory > self._limits.memory_mb * MIB:
            return self._failed(f"its processes took more than {self._limits.memory_mb} MB")
        if self._stage != "start" and used.cpu_s - self._cpu_before > self._limits.timeout_s:
            return self._failed(f"it took more than {self._limits.timeout_s:g} s of CPU time")
        return None

    def _handle(self, pipe: Any) -> SandboxResult | None:
        if pipe is self._in:
            self._send()
            return None
        try:
            data = os.read(pipe.fileno(), 65536)
        except BlockingIOError:
            return None
        if pipe is self._err:
            self._errors = (self._errors + data)[:2000]
            if not data:
                self._selector.unregister(pipe)
            return None
        if not data:
            return self._ended()
        self._received += len(data)
        if self._received > MAX_SENT:
            return self._failed("it sent too much")
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            result = self._receive(line)
            if result is not None:
                return result
        return None

    def _send(self) -> None:
        try:
            self._unsent = self._unsent[os.write(self._in.fileno(), self._unsent) :]
        except BlockingIOError:
            return
        except OSError:  # the process has ended: the other pipe reports that
            self._unsent = b""
        if not self._unsent:
            self._selector.unregister(self._in)

    def _queue(self, message: Any) -> None:
        self._unsent += json.dumps(message).encode() + b"\n"
        if self._in not in self._selector.get_map():
            self._selector.register(self._in, selectors.EVENT_WRITE)

    def _receive(self, line: bytes) -> SandboxResult | None:
        try:
            kind, *rest = json.loads(line)
            if kind == "started" and self._stage == "start":
                self._stage = "code"
                # The code is sent after this: Python's startup does not count.
                self._cpu_before = 0.0 if self._is_container else resource_usage(self._process.pid).cpu_s
                self._queue({"code": self._code})
            elif kind == "ready" and self._stage == "code":
                self._stage = "test"
                self._queue({"test": self._test.text, "check": self._test.check, "token": self._token})
            elif kind == "value" and self._stage == "test":
                return self._checked(int(rest[0]), rest[1])
            elif kind == "done" and self._stage == "test" and secrets.compare_digest(str(rest[0]), self._token):
                return self._done()
            elif kind == "failed":
                name, message = one_line(rest[1]), one_line(rest[2])
                return self._failed(f"{name}: {message}" if message else name)
            else:
                return self._failed("it sent what no test sends")
        except (ValueError, TypeError, IndexError, RecursionError):
            return self._failed("it sent what no test sends")
        return None

    def _checked(self, number: int, sent: Any) -> SandboxResult | None:
        if not 0 <= number < len(self._test.checks):
            return self._failed("it sent what no test sends")
        check = self._test.checks[number]
        self._made.add(number)
        try:
            return None if check.passes(sent) else self._failed(f"`{one_line(check.source)}` is wrong")
        except NotPlain as error:
            return self._failed(f"`{one_line(check.source)}` {error}")

    def _done(self) -> SandboxResult:
        if self._test.required - self._made:
            return self._failed("it left out assertions")
        return self._over_limit() or SandboxResult("passed")

    def _ended(self) -> SandboxResult:
        if self._stage == "start":
            self._process.wait()
            self._errors = (self._errors + (self._err.read() or b""))[:2000]
            return SandboxResult("broken", f"it ended at once{self._stderr()}")
        return self._failed("its process ended before the test did")

    def _failed(self, why: str) -> SandboxResult:
        return SandboxResult("test failed" if self._stage == "test" else "code failed", why)

    def _stderr(self) -> str:
        text = one_line(self._errors.decode("utf-8", "replace"))
        return f": {text}" if text else ""

    def close(self) -> None:
        self._selector.close()
        for pipe in (self._in, self._out, self._err):
            pipe.close()


def one_line(text: Any) -> str:
    """Output of code as one printable line."""
    line = " ".join("".join(c if c.isprintable() else " " for c in str(text)[:2000]).split())
    return line[:MAX_REASON] + ("…" if len(line) > MAX_REASON else "")
