"""code: the response's Python code is run against the row's tests in a sandbox; the score is the share that passes.

What cannot be forged: an assertion that compares with a literal (`f(x) == 3`, `abs(f(x) - 1.5) < 0.1`, `f(x) is True`)
is decided outside, where the code is not. `os._exit`, `sys.exit`, printing, patched builtins and an `__eq__` that
always agrees earn nothing. That a test came to its end is shown by a token, which is sent after the code has run.

What remains: the code shares a process with the test that calls it. Code that knows this program can wait in a function
for the call, find the token in the frames around it, and report the end of a test whose assertions are of another form
(`assert f(x)`, `f(x) == g(x)`), or in a loop, a `try` or a `with`; it can send a value that it guesses; and a name that
a test takes for granted, such as `all`, may be the code's own. Where it matters, write `assert f(x) == literal`, one
below the other. The value must then be plain data: an object of a class is compared by its parts, or by its `str`.

`timeout_s` is CPU time, and no more sandboxes run than there are cores, whoever asks: a right answer must not fail
because the machine is busy. What sleeps takes no CPU time and looks from outside like what waits for a core; it fails
by the clock, whose limit is ten times as long and more (`Limits.clock_s`). The rest of an answer's tests are not run
once it has slept through two of them.
"""

import os
from collections.abc import Sequence
from functools import cache
from textwrap import dedent

from vigneron.errors import UserError, did_you_mean
from vigneron.rewards.graders.assertions import PreparedTest, prepared
from vigneron.rewards.graders.find import find_sandbox
from vigneron.rewards.graders.sandbox import Limits, Sandbox
from vigneron.rewards.graders.trial import Outcome, one_line, probe, trial
from vigneron.rubric.model import CodeItem
from vigneron.sources.verdict import Answered, Verdict
from vigneron.threads import DaemonPool

MOST_TESTS = 100
LONGEST_CODE = 100_000
PYTHON = ("python", "python3", "py")
MOST_SLEEPS = 2


@cache
def _pool() -> DaemonPool:
    """One for all items and all their callers."""
    return DaemonPool(cores(), "code")


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Code:
    waits = True

    def __init__(self, item: CodeItem, sandbox: Sandbox | None = None) -> None:
        self._item = item
        self._limits = Limits(item.timeout_s, item.memory_mb)
        try:
            self._sandbox = sandbox or find_sandbox()
        except UserError as error:
            raise UserError(f"item '{item.name}': {error}") from None
        if (why := probe(self._sandbox, self._limits)) is not None:
            raise UserError(
                f"item '{item.name}': not even an empty program runs within {item.timeout_s:g} s and {item.memory_mb} "
                f"MB ({why}): raise timeout_s or memory_mb"
            )

    def __call__(self, samples: Sequence[Answered]) -> list[Verdict]:
        tests = [self._tests(sample) for sample in samples]
        codes = [python_code(sample.response) for sample in samples]
        futures = [_pool().submit(self._verdict, code, some) for code, some in zip(codes, tests, strict=True)]
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()

    def _tests(self, sample: Answered) -> list[str]:
        column, where = self._item.tests, f"item '{self._item.name}', tests"
        if column not in sample.row:
            raise UserError(f"{where}: a row has no column '{column}'{did_you_mean(column, sample.row)}")
        found = sample.row[column]
        tests = [] if found is None else [found] if isinstance(found, str) else found
        if not isinstance(tests, list | tuple) or not all(isinstance(test, str) for test in tests):
            raise UserError(f"{where}: column '{column}' holds something else than a text or a list of texts")
        if len(tests) > MOST_TESTS:
            raise UserError(f"{where}: a row has {len(tests)} tests, more than {MOST_TESTS}: join some of them")
        return [test for test in tests if test.strip()]

    def _verdict(self, code: str, tests: Sequence[str]) -> Verdict:
        if not tests:
            return Verdict.missing("the row has no tests")
        ready: list[PreparedTest] = []
        for number, test in enumerate(tests, start=1):
            try:
                ready.append(prepared(test))
            except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
                return Verdict.missing(f"test {number} of the row is not Python: {one_line(error)}")
        if not code.strip():
            return Verdict(0.0, reasoning="there is no code")
        if len(code) > LONGEST_CODE:
            return Verdict(0.0, reasoning=f"the code is longer than {LONGEST_CODE} characters")
        outcomes: list[Outcome] = []
        for one in ready:
            if sum(outcome.slept for outcome in outcomes) == MOST_SLEEPS:
                outcomes += [Outcome("test failed", "not run")] * (len(ready) - len(outcomes))
                break
            outcomes.append(trial(self._sandbox, self._limits, code, one))
            if outcomes[-1].end == "broken":
                return Verdict.missing(f"the sandbox failed: {outcomes[-1].why}")
            if outcomes[0].end == "code failed":
                return Verdict(0.0, reasoning=f"the code fails before any test: {outcomes[0].why}")
        passed = sum(outcome.end == "passed" for outcome in outcomes)
        failed = [f"test {n}: {outcome.why}" for n, outcome in enumerate(outcomes, start=1) if outcome.why]
        said = f"{passed} of {len(outcomes)} tests pass"
        return Verdict(passed / len(outcomes), reasoning="; ".join([said, *failed[:3]]))


def python_code(response: str) -> str:
    """The first fence of Python's, or the first that names no language, or the whole text."""
    fences = _fences(response)
    own = [body for language, body in fences if language in PYTHON]
    unnamed = [body for language, body in fences if not language]
    return next(iter([*own, *unnamed]), response)


def _fences(text: str) -> list[tuple[str, str]]:
    """Languages and bodies. The last may be open, where a length limit cut the response."""
    found: list[tuple[str, list[str]]] = []
    is_open = False
    for line in text.split("\n"):
        mark = line.strip()
        if is_open and mark == "```":
            is_open = False
        elif is_open:
            found[-1][1].append(line)
        elif mark.startswith("```") and "```" not in mark[3:]:
            found.append(("".join(mark[3:].split()[:1]).lower(), []))
            is_open = True
    return [(language, dedent("\n".join(lines))) for language, lines in found]
