"""One run of an answer's code with one test, seen from outside of the sandbox: the clock, the memory, the verdict."""

import json
import os
import secrets
import selectors
import time
from dataclasses import dataclass, replace
from typing import Any, Literal

from vigneron.rewards.graders.assertions import NotPlain, PreparedTest, prepared
from vigneron.rewards.graders.sandbox import MIB, Limits, Running, Sandbox, used_by

# For the sandbox to come up, on a machine with other things to do.
START_S = 30.0
# How often memory and CPU time are looked at.
TICK_S = 0.05
MOST_SENT = 4 * MIB
LONGEST_REASON = 200


@dataclass(frozen=True)
class Outcome:
    """`broken`: the sandbox itself failed, which says nothing about the code."""

    end: Literal["passed", "code failed", "test failed", "broken"]
    why: str = ""
    slept: bool = False
    """The clock ended it, not its CPU time."""


def trial(sandbox: Sandbox, limits: Limits, code: str, test: PreparedTest) -> Outcome:
    """Nothing is left running. The test passes when it came to its end, which the token shows that it is sent after the
    code has run, every value it sent is the right one, and none that is required was left out."""
    try:
        running = sandbox.start(limits)
    except OSError as error:
        return Outcome("broken", f"it cannot be started: {error}")
    talk = _Talk(running, limits, code, test)
    try:
        outcome = talk.outcome()
    finally:
        running.end()
        talk.close()
    return outcome


def probe(sandbox: Sandbox, limits: Limits | None = None) -> str | None:
    """Why it does not work; None when it does."""
    outcome = trial(
        sandbox, limits or Limits(), "def double(x):\n    return 2 * x", prepared("assert double(21) == 42")
    )
    return None if outcome.end == "passed" else outcome.why


class _Talk:
    def __init__(self, running: Running, limits: Limits, code: str, test: PreparedTest) -> None:
        self._process, self._limits, self._test = running.process, limits, test
        self._contained = running.container is not None
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

    def outcome(self) -> Outcome:
        deadline, look_at = time.monotonic() + START_S, 0.0
        while (left := deadline - time.monotonic()) > 0:
            for key, _ in self._selector.select(min(TICK_S, left)):
                before = self._stage
                found = self._handled(key.fileobj)
                if found is not None:
                    return found
                if before == "start" != self._stage:
                    deadline = time.monotonic() + self._limits.clock_s
            if time.monotonic() >= look_at:
                look_at = time.monotonic() + TICK_S
                if (found := self._above_a_limit()) is not None:
                    return found
        if self._stage == "start":
            return Outcome("broken", f"it did not start within {START_S:g} s{self._said()}")
        return replace(self._failed(f"it did not end within {self._limits.clock_s:g} s"), slept=True)

    def _above_a_limit(self) -> Outcome | None:
        if self._contained:
            return None
        used = used_by(self._process.pid)
        if used.memory > self._limits.memory_mb * MIB:
            return self._failed(f"its processes took more than {self._limits.memory_mb} MB")
        if self._stage != "start" and used.cpu_s - self._cpu_before > self._limits.timeout_s:
            return self._failed(f"it took more than {self._limits.timeout_s:g} s of CPU time")
        return None

    def _handled(self, pipe: Any) -> Outcome | None:
        if pipe is self._in:
            self._send()
            return None
        try:
            found = os.read(pipe.fileno(), 65536)
        except BlockingIOError:
            return None
        if pipe is self._err:
            self._errors = (self._errors + found)[:2000]
            if not found:
                self._selector.unregister(pipe)
            return None
        if not found:
            return self._ended()
        self._received += len(found)
        if self._received > MOST_SENT:
            return self._failed("it sent too much")
        *lines, self._unread = (self._unread + found).split(b"\n")
        for line in lines:
            outcome = self._told(line)
            if outcome is not None:
                return outcome
        return None

    def _send(self) -> None:
        try:
            self._unsent = self._unsent[os.write(self._in.fileno(), self._unsent) :]
        except BlockingIOError:
            return
        except OSError:  # nobody reads any more: what is to be said about that comes from the other pipe
            self._unsent = b""
        if not self._unsent:
            self._selector.unregister(self._in)

    def _say(self, message: Any) -> None:
        self._unsent += json.dumps(message).encode() + b"\n"
        if self._in not in self._selector.get_map():
            self._selector.register(self._in, selectors.EVENT_WRITE)

    def _told(self, line: bytes) -> Outcome | None:
        try:
            kind, *rest = json.loads(line)
            if kind == "started" and self._stage == "start":
                self._stage = "code"
                # The code goes in after this: what Python took to start is not the answer's.
                self._cpu_before = 0.0 if self._contained else used_by(self._process.pid).cpu_s
                self._say({"code": self._code})
            elif kind == "ready" and self._stage == "code":
                self._stage = "test"
                self._say({"test": self._test.text, "check": self._test.check, "token": self._token})
            elif kind == "value" and self._stage == "test":
                return self._checked(int(rest[0]), rest[1])
            elif kind == "done" and self._stage == "test" and secrets.compare_digest(str(rest[0]), self._token):
                return self._done()
            elif kind == "failed":
                name, said = one_line(rest[1]), one_line(rest[2])
                return self._failed(f"{name}: {said}" if said else name)
            else:
                return self._failed("it sent what no test sends")
        except (ValueError, TypeError, IndexError, RecursionError):
            return self._failed("it sent what no test sends")
        return None

    def _checked(self, number: int, sent: Any) -> Outcome | None:
        if not 0 <= number < len(self._test.checks):
            return self._failed("it sent what no test sends")
        check = self._test.checks[number]
        self._made.add(number)
        try:
            return None if check.passes(sent) else self._failed(f"`{one_line(check.source)}` is wrong")
        except NotPlain as error:
            return self._failed(f"`{one_line(check.source)}` {error}")

    def _done(self) -> Outcome:
        if self._test.required - self._made:
            return self._failed("it left out assertions")
        return self._above_a_limit() or Outcome("passed")

    def _ended(self) -> Outcome:
        if self._stage == "start":
            self._process.wait()
            self._errors = (self._errors + (self._err.read() or b""))[:2000]
            return Outcome("broken", f"it ended at once{self._said()}")
        return self._failed("its process ended before the test did")

    def _failed(self, why: str) -> Outcome:
        return Outcome("test failed" if self._stage == "test" else "code failed", why)

    def _said(self) -> str:
        said = one_line(self._errors.decode("utf-8", "replace"))
        return f": {said}" if said else ""

    def close(self) -> None:
        self._selector.close()
        for pipe in (self._in, self._out, self._err):
            pipe.close()


def one_line(text: Any) -> str:
    """What code says, fit to be shown."""
    line = " ".join("".join(c if c.isprintable() else " " for c in str(text)[:2000]).split())
    return line[:LONGEST_REASON] + ("…" if len(line) > LONGEST_REASON else "")
