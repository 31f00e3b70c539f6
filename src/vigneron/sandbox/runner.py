"""Run code with one test in a sandbox, and watch its time, memory and messages from outside."""

import json
import os
import re
import selectors
import shutil
import sys
import time
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from functools import cache
from math import inf
from typing import Any, Literal

from vigneron.errors import UserError
from vigneron.sandbox.backends import (
    IMAGE,
    MIB,
    Bubblewrap,
    Container,
    Limits,
    Sandbox,
    resource_usage,
)
from vigneron.sandbox.pipes import SandboxPipes, TooMuch
from vigneron.sandbox.testers import Tester, borrow, give_back

# Time for the sandbox to start on a busy machine.
START_S = 30.0
# Interval between checks of memory and CPU time.
POLL_S = 0.05
MAX_REASON = 200
EXCHANGED = (b'["ask",', b'["value",', b'["raise",')
"""Lines that the two processes exchange; their content is data, and not read here."""
OUT_OF_TURN = "it sent what no test sends"
DECIMAL = re.compile(r"[+-]?[0-9]{1,30}\.[0-9]{1,60}")
INTEGER = re.compile(r"[+-]?(?:0|[1-9][0-9]{0,29})")
TOLERANCE = Decimal("1e-6")


@dataclass(frozen=True)
class SandboxResult:
    """`missing`: the test says nothing about the code. `broken`: the sandbox itself failed."""

    end: Literal["passed", "code failed", "test failed", "missing", "broken"]
    why: str = ""
    clock_timeout: bool = False
    """The wall-clock limit ended it, not the CPU limit."""
    printed: str = ""
    """What a `Script` printed before it ended."""


@dataclass(frozen=True)
class PythonTest:
    """Assertions about names of the code."""

    test: str
    setup: str = ""
    """Runs before the test."""
    entry: str | None = None
    """The function that `check(candidate)` gets."""


@dataclass(frozen=True)
class ProgramTest:
    """The code is a program: what it prints for an input."""

    stdin: str
    expected: str


@dataclass(frozen=True)
class Script:
    """The code is a program that is run, and not tested. Like Python's prompt it prints the value of an expression
    that stands last."""

    stdin: str = ""


AnyTest = PythonTest | ProgramTest | Script


def run_test(sandbox: Sandbox, limits: Limits, code: str, test: AnyTest) -> SandboxResult:
    """Run the code with one test, each in a sandbox; leaves no process of the code behind."""
    result, died = _run(sandbox, limits, code, test, new=False)
    # A tester ends with the thread that started it.
    return _run(sandbox, limits, code, test, new=True)[0] if died else result


def _run(sandbox: Sandbox, limits: Limits, code: str, test: AnyTest, *, new: bool) -> tuple[SandboxResult, bool]:
    """The result, and whether the test's process died before it did anything."""
    try:
        answer = SandboxPipes(sandbox.start(limits))
    except OSError as error:
        return SandboxResult("broken", f"it cannot be started: {error}"), False
    tester: Tester | None = None
    session: _Session | None = None
    try:
        tester = borrow(sandbox, limits, new=new) if isinstance(test, PythonTest) else None
        session = _Session(answer, tester, limits, code, test)
        result = session.result()
        return result, session.tester_ended and not new and not session.passed_on
    except OSError as error:
        return SandboxResult("broken", f"it cannot be started: {error}"), False
    finally:
        answer.end()
        if session is not None:
            session.close()
        if tester is not None:
            _leave(tester, session)


def run_session(answer: SandboxPipes, tester: Tester | None, limits: Limits, code: str, test: AnyTest) -> SandboxResult:
    """One exchange over pipes that are open already. Without a tester a Python test cannot pass."""
    session = _Session(answer, tester, limits, code, test)
    try:
        return session.result()
    finally:
        session.close()


def _leave(tester: Tester, session: "_Session | None") -> None:
    if not tester.sandbox.keeps_testers:
        tester.pipes.end()
        return
    if session is not None and session.waiting and not session.over:
        tester.pipes.send(b'["stop"]\n')
        session.over = True
    if session is not None and session.over and tester.clean_end():
        give_back(tester)
    else:
        tester.pipes.end()


def probe(sandbox: Sandbox, limits: Limits | None = None) -> str | None:
    """Why the sandbox does not work; None if it does."""
    result = run_test(
        sandbox, limits or Limits(), "def double(x):\n    return 2 * x", PythonTest("assert double(21) == 42")
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
        sandboxes.append(Bubblewrap(bwrap, own, sys.base_prefix))
        if (system := os.path.realpath("/usr/bin/python3")) != own and os.path.exists(system):
            sandboxes.append(Bubblewrap(bwrap, system, "/usr"))
    sandboxes += [Container(program) for name in ("podman", "docker") if (program := shutil.which(name))]
    return sandboxes


class _Session:
    """One test: the exchange of messages between the process of the code and that of the test.

    The two take turns. A line that the code's process sends out of turn is never passed on: it could be taken for a
    reply, or for another test."""

    def __init__(self, answer: SandboxPipes, tester: Tester | None, limits: Limits, code: str, test: AnyTest) -> None:
        self._answer, self._tester, self._limits, self._code, self._test = answer, tester, limits, code, test
        self._is_container = answer.running.container is not None
        self._stage: Literal["start", "code", "test"] = "start"
        self._turn: Literal["answer", "tester"] = "tester"
        self._held: bytes | None = None
        self._code_failed: SandboxResult | None = None
        self.passed_on = 0
        """Lines of the code's process that the test's got."""
        self.over = False
        """The test's process has sent its result."""
        self.waiting = False
        """The test's process waits for a reply."""
        self.tester_ended = False
        self._cpu_before = 0.0
        self._deadline = time.monotonic() + START_S
        self._end = inf
        self._selector = selectors.DefaultSelector()
        answer.attach(self._selector)
        if tester is not None:
            tester.pipes.attach(self._selector)
            if tester.started:
                self._request_test()

    def _request_test(self) -> None:
        assert self._tester is not None
        assert isinstance(self._test, PythonTest)
        request = {"limits": self._tester.sandbox.hard(self._limits), **asdict(self._test)}
        self._tester.pipes.send(json.dumps(request).encode() + b"\n")

    def result(self) -> SandboxResult:
        poll_at = time.monotonic() + POLL_S
        while (left := self._deadline - time.monotonic()) > 0:
            for key, _ in self._selector.select(min(POLL_S, left)):
                result = self._handle(key.data, key.fileobj)
                if result is not None:
                    return result
            if time.monotonic() >= poll_at:
                poll_at = time.monotonic() + POLL_S
                if (result := self._over_limit() or self._test_over_limit()) is not None:
                    return result
        if self._stage == "start":
            return SandboxResult("broken", f"it did not start within {START_S:g} s{self._stderr()}")
        limit = self._limits.total_s if self._deadline == self._end else self._limits.clock_s
        return replace(self._failed(f"it did not end within {limit:g} s"), clock_timeout=True)

    def _restart_clock(self) -> None:
        """After a message: the wall clock limits the time without one, and more generously the whole test."""
        if self._stage != "start":
            self._deadline = min(time.monotonic() + self._limits.clock_s, self._end)

    def _over_limit(self) -> SandboxResult | None:
        if self._is_container:
            return None
        used = resource_usage(self._answer.running.process.pid)
        if used.memory > self._limits.memory_mb * MIB:
            return self._failed(f"its processes took more than {self._limits.memory_mb} MB")
        if self._stage != "start" and used.cpu_s - self._cpu_before > self._limits.timeout_s:
            return self._failed(f"it took more than {self._limits.timeout_s:g} s of CPU time")
        return None

    def _test_over_limit(self) -> SandboxResult | None:
        """The memory of all its processes; the kernel limits each one's CPU time."""
        if self._is_container or self._tester is None:
            return None
        if resource_usage(self._tester.pid).memory > self._limits.memory_mb * MIB:
            return SandboxResult("test failed", f"the test's processes took more than {self._limits.memory_mb} MB")
        return None

    def _handle(self, pipes: SandboxPipes, pipe: Any) -> SandboxResult | None:
        is_answer = pipes is self._answer
        try:
            lines = pipes.lines(pipe)
        except TooMuch:
            return self._failed("it sent too much")
        if self._code_failed is not None and is_answer:
            return None
        if lines is None:
            return self._after_reading_the_test(self._answer_ended()) if is_answer else self._tester_died()
        for at, line in enumerate(lines, start=1):
            result = self._from_answer(line) if is_answer else self._from_tester(line)
            if result is not None:
                if self._tester is not None and not is_answer:
                    self._tester.unread = lines[at:]
                return self._after_reading_the_test(result) if is_answer else result
        return self._code_failed if self.waiting else None

    def _after_reading_the_test(self, result: SandboxResult) -> SandboxResult | None:
        """A test that tests nothing is missing, even if the code fails first."""
        if self._tester is None or self.waiting or result.end != "code failed":
            return result
        self._code_failed = result
        for key in [key for key in self._selector.get_map().values() if key.data is self._answer]:
            self._selector.unregister(key.fileobj)
        self._answer.detach()
        return None

    def _from_answer(self, line: bytes) -> SandboxResult | None:
        if line.startswith(EXCHANGED):
            if self._stage != "test" or self._turn != "answer" or self._tester is None:
                return self._failed(OUT_OF_TURN)
            self._turn, self.waiting = "tester", False
            self.passed_on += 1
            self._restart_clock()
            self._tester.pipes.send(line + b"\n")
            return None
        try:
            kind, *rest = json.loads(line)
            if kind == "started" and self._stage == "start":
                self._stage = "code"
                self._end = time.monotonic() + self._limits.total_s
                self._restart_clock()
                # The code is sent after this: Python's startup does not count.
                if not self._is_container:
                    self._cpu_before = resource_usage(self._answer.running.process.pid).cpu_s
                stdin = None if isinstance(self._test, PythonTest) else self._test.stdin
                shows = isinstance(self._test, Script)
                request = {"code": self._code, "stdin": stdin, "shows_value": shows}
                self._answer.send(json.dumps(request).encode() + b"\n")
            elif kind == "ready" and self._stage == "code" and self._tester is not None:
                self._stage = "test"
                self._restart_clock()
                if self._held is not None:
                    self._answer.send(self._held)
                    self._turn, self._held = "answer", None
            elif kind == "output" and self._stage == "code" and not isinstance(self._test, PythonTest):
                self._stage = "test"
                return self._printed(self._test, *rest)
            elif kind == "failed" and self._stage == "code":
                name, message = one_line(rest[0]), one_line(rest[1])
                return self._failed(f"{name}: {message}" if message else name)
            else:
                return self._failed(OUT_OF_TURN)
        except (ValueError, TypeError, IndexError, KeyError, ArithmeticError, RecursionError):
            return self._failed(OUT_OF_TURN)
        return None

    def _from_tester(self, line: bytes) -> SandboxResult | None:
        assert self._tester is not None
        if line.startswith(EXCHANGED):
            self.waiting = True
            self._restart_clock()
            if self._stage == "test":
                self._turn = "answer"
                self._answer.send(line + b"\n")
            else:
                self._held = line + b"\n"
            return None
        try:
            kind, *rest = json.loads(line)
        except (ValueError, TypeError, RecursionError):
            return self._tester_died()
        if kind == "started":
            self._tester.note_started()
            self._restart_clock()
            self._request_test()
            return None
        if kind != "result" or len(rest) != 2:
            return self._tester_died()
        self.over = True
        end, why = rest[0], one_line(rest[1])
        if end == "missing":
            return SandboxResult("missing", why)
        if end == "passed":
            return self._over_limit() or SandboxResult("passed")
        return SandboxResult("test failed", why)

    def _printed(self, test: ProgramTest | Script, ended_well: Any, printed: Any, errors: Any) -> SandboxResult:
        if isinstance(test, Script):
            over = None if ended_well is True else self._failed(one_line(errors))
            return replace(over or self._over_limit() or SandboxResult("passed"), printed=str(printed))
        if ended_well is not True:
            return self._failed(f"the program fails: {one_line(errors)}")
        if not same_output(str(printed), test.expected):
            return self._failed("the output is wrong")
        return self._over_limit() or SandboxResult("passed")

    def _answer_ended(self) -> SandboxResult:
        if self._stage == "start":
            errors = self._answer.last_errors()
            return SandboxResult("broken", f"it ended at once{_shown(errors)}")
        return self._failed("its process ended before the test did")

    def _tester_died(self) -> SandboxResult:
        self.tester_ended = True
        if self.passed_on:  # by what the code has sent
            return SandboxResult("test failed", "the test's process ended before the test did")
        if self._tester is not None and self._tester.started:
            return SandboxResult("missing", "its process ended before it used the code")
        return SandboxResult("broken", "the sandbox of the tests ended at once")

    def _failed(self, why: str) -> SandboxResult:
        return SandboxResult("test failed" if self._stage == "test" else "code failed", why)

    def _stderr(self) -> str:
        return _shown(self._answer.errors)

    def close(self) -> None:
        self._selector.close()
        self._answer.detach()
        if self._tester is not None:
            self._tester.pipes.detach()


def _shown(errors: bytes) -> str:
    text = one_line(errors.decode("utf-8", "replace"))
    return f": {text}" if text else ""


def same_output(printed: str, expected: str) -> bool:
    """Equal up to spaces at the ends of lines and empty lines at the end, and up to the notation of numbers.

    Two words with a decimal point are equal within 1e-6 of the expected number, `2` and `2.0` if they are the same
    number. Any other words must be the same: `02`, `2e0`, `nan`."""
    ours, theirs = (text.rstrip().split("\n") for text in (printed, expected))
    if [line.rstrip() for line in ours] == [line.rstrip() for line in theirs]:
        return True
    if len(ours) != len(theirs):
        return False
    for our, their in zip(ours, theirs, strict=True):
        words = our.split(), their.split()
        if len(words[0]) != len(words[1]) or not all(map(_same_word, *words)):
            return False
    return True


def _same_word(ours: str, theirs: str) -> bool:
    if ours == theirs:
        return True
    decimals = [bool(DECIMAL.fullmatch(word)) for word in (ours, theirs)]
    if all(decimals):
        return abs(Decimal(ours) - Decimal(theirs)) <= TOLERANCE * abs(Decimal(theirs))
    if not any(decimals) or not INTEGER.fullmatch(theirs if decimals[0] else ours):
        return False
    return Decimal(ours) == Decimal(theirs)


def one_line(text: Any) -> str:
    """Output of code as one printable line."""
    line = " ".join("".join(c if c.isprintable() else " " for c in str(text)[:2000]).split())
    return line[:MAX_REASON] + ("…" if len(line) > MAX_REASON else "")
