"""Limits of a sandbox: faults leave the machine unharmed, and time counts only where the code has a core."""

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.hostile_code import FAULTS, REASONS, TOO_LONG
from support.sandboxed import ADD, graded, needs_sandbox, scorer
from vigneron.rewards.graders import code as graders_code
from vigneron.sandbox import backends, runner
from vigneron.sandbox.backends import Limits
from vigneron.sandbox.pipes import SandboxPipes
from vigneron.sandbox.runner import PythonTest, find_sandbox, run_test
from vigneron.sources.verdict import GraderInput, Verdict
from vigneron.threads import cores

pytestmark = pytest.mark.slow


# Limits that no other sandbox has.
OWN_MB = random.randrange(200, 500)


@pytest.fixture
def nothing_left() -> Iterator[dict[str, Any]]:
    """After the test no process runs under its limits."""
    yield {"memory_mb": OWN_MB}
    mark = f'"AS": {OWN_MB * 2**20}'.encode()
    until = time.monotonic() + 600
    while (left := _with(mark)) and time.monotonic() < until:
        time.sleep(0.01)
    assert left == []


def _with(mark: bytes) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (process / "cmdline").read_bytes():
                found.append(int(process.name))
        except OSError:
            continue
    return found


@needs_sandbox
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_contained_and_scores_0_with_its_reason(
    fault: str, nothing_left: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 0.6 if REASONS[fault] in (TOO_LONG, None) or fault == "sleeps" else 5.0
    if fault == "sleeps":
        hurried(monkeypatch)
    elif REASONS[fault] is not None:
        patient(monkeypatch)
    verdict = graded(FAULTS[fault], "assert add(1, 2) == 3", "assert True", timeout_s=limit, **nothing_left)
    assert (verdict.score, verdict.why) == (0.0, None)
    assert verdict.reasoning.startswith("the code fails before any test: ")
    assert (REASONS[fault] or "") in verdict.reasoning
    assert len(verdict.reasoning) < 400


@needs_sandbox
def test_a_fault_in_one_test_leaves_the_others_what_they_earned(
    nothing_left: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    patient(monkeypatch)
    code = "def add(a, b):\n    while a < 0:\n        pass\n    return a + b"
    verdict = graded(
        code, "assert add(1, 2) == 3", "assert add(-1, 2) == 1", "assert add(0, 2) == 2", timeout_s=1.0, **nothing_left
    )
    assert verdict.score == 2 / 3
    assert verdict.reasoning == "2 of 3 tests pass; test 2: it took more than 1 s of CPU time"


def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock ends after twice the CPU time."""
    monkeypatch.setattr(backends, "CLOCK_FACTOR", 2)
    monkeypatch.setattr(backends, "CLOCK_EXTRA_S", 0.0)


def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is CPU time that ends code, or nothing, however slow the machine is."""
    monkeypatch.setattr(backends, "CLOCK_EXTRA_S", 600.0)


def test_the_clock_is_generous() -> None:
    assert (Limits(2.0).clock_s, Limits(2.0).total_s) == (25, 125)


@needs_sandbox
@pytest.mark.parametrize(
    ("calls", "end", "why"), [(20, "passed", ""), (100, "test failed", "it did not end within 75 s")]
)
def test_the_clock_limits_the_time_without_a_message(
    calls: int, end: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second passes with each message, and no time otherwise; the limit is 15 s."""
    now = [0.0]
    send = SandboxPipes.send

    def slow_send(pipes: SandboxPipes, line: bytes) -> None:
        now[0] += 1
        send(pipes, line)

    monkeypatch.setattr(SandboxPipes, "send", slow_send)
    monkeypatch.setattr(runner, "time", SimpleNamespace(monotonic=lambda: now[0]))
    test = PythonTest(f"for n in range({calls}):\n    assert add(n, 1) == n + 1")
    result = run_test(find_sandbox(), Limits(1.0), ADD, test)
    assert (result.end, result.why, result.clock_timeout) == (end, why, end != "passed")
    assert now[0] > Limits(1.0).clock_s


@needs_sandbox
def test_an_answer_that_sleeps_twice_is_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others have longer, however slow the machine is."""
    patient(monkeypatch)
    run = graders_code.run_test

    def hurried(sandbox: Any, limits: Limits, code: str, test: PythonTest) -> Any:
        return run(sandbox, replace(limits, wall_s=0.8) if "add(1" in test.test else limits, code, test)

    monkeypatch.setattr(graders_code, "run_test", hurried)
    code = "import time\ndef add(a, b):\n    time.sleep(1000 * a)\n    return a + b"
    tests = ["assert add(0, 1) == 1", *["assert add(1, 1) == 2"] * 8, "assert add(0, 2) == 2"]
    verdict = graded(code, *tests)
    assert verdict.score == 1 / 10
    slept = "it did not end within 0.8 s"
    assert verdict.reasoning == f"1 of 10 tests pass; test 2: {slept}; test 3: {slept}; test 4: not run"


WORKS = """
import time
def work():
    end = time.process_time() + 0.4
    while time.process_time() < end:
        pass
    return 3
"""


@needs_sandbox
@pytest.mark.slow
def test_a_right_answer_on_a_busy_machine_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the reward asks: several items and parts of a step at once."""
    patient(monkeypatch)
    samples = [GraderInput("q", WORKS, {"tests": "assert work() == 3"})] * 4
    with ThreadPoolExecutor(4) as parts:
        found = list(parts.map(scorer(timeout_s=0.8), [samples] * 4))
    assert found == [[Verdict(1.0, reasoning="1 of 1 tests pass")] * 4] * 4
    assert sum(thread.name.startswith("code-") for thread in threading.enumerate()) <= cores()


@needs_sandbox
def test_time_without_a_core_does_not_count(nothing_left: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Held still for longer than its limit while it works."""
    patient(monkeypatch)
    grader = scorer(timeout_s=0.8, **nothing_left)
    with ThreadPoolExecutor(1) as aside:
        found = aside.submit(grader, [GraderInput("q", WORKS, {"tests": "assert work() == 3"})])
        while not (python := [pid for pid in _with(b'"AS": %d' % (OWN_MB * 2**20)) if not _is_bubblewrap(pid)]):
            time.sleep(0.01)
        time.sleep(0.2)
        for signal_number, wait_s in ((signal.SIGSTOP, 1.0), (signal.SIGCONT, 0.0)):
            for pid in python:
                with suppress(ProcessLookupError):  # this process was held up, and that one is done
                    os.kill(pid, signal_number)
            time.sleep(wait_s)
        assert [verdict.score for verdict in found.result()] == [1.0]


def _is_bubblewrap(pid: int) -> bool:
    """Or gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == "bwrap"
    except OSError:
        return True
