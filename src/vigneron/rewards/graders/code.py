"""`flow: code`: run the response's Python code against the row's tests in a sandbox; the score is the share that pass.

The code and the test run in two processes, each in a sandbox. Names of the code stand for calls to its process, results
come back as plain data, and the test compares them where the code never ran: it cannot patch `math.isclose`, return an
object whose `__eq__` is always true, or report that a test has passed. `sandbox/inside/tester_peer.py` says what
happens to results that are no plain data.

Tests are taken as datasets have them: assertions (MBPP, with `test_setup_code` and `test_imports`), `check(candidate)`
with the column `entry_point` (HumanEval), functions and classes for pytest or unittest, and inputs with outputs (APPS,
TACO). A test that reaches no assertion, or does not use the code, is missing.

`timeout_s` is CPU time, and at most one sandbox runs per core, so that correct code does not fail on a busy machine.
Code that sleeps uses no CPU time and is stopped by the longer wall-clock limits (`Limits.clock_s` without a message,
`Limits.total_s` for the whole test); after two such timeouts the remaining tests of a response are not run.
"""

from collections.abc import Callable, Sequence
from functools import cache
from textwrap import dedent

from vigneron.errors import UserError
from vigneron.rewards.graders.row_tests import MalformedTests, row_tests
from vigneron.rubric.model import CodeItem
from vigneron.sandbox.backends import Limits, Sandbox
from vigneron.sandbox.runner import AnyTest, ProgramTest, SandboxResult, find_sandbox, probe, run_test
from vigneron.sources.verdict import GraderInput, Verdict
from vigneron.threads import DaemonPool, cores

MAX_CODE = 100_000
MAX_TESTS = 100
PYTHON = ("python", "python3", "py")
MAX_CLOCK_TIMEOUTS = 2


@cache
def _pool() -> DaemonPool:
    """Shared by all items and callers."""
    return DaemonPool(cores(), "code")


class CodeGrader:
    overlaps = True

    def __init__(
        self, item: CodeItem, sandbox: Sandbox | None = None, notice: Callable[[str], None] = lambda text: None
    ) -> None:
        self._item, self._notice = item, notice
        self._notified: set[str] = set()
        self._limits = Limits(item.timeout_s, item.memory_mb)
        try:
            self._sandbox = sandbox or find_sandbox()
        except UserError as error:
            raise UserError(f"item '{item.name}': {error}") from None
        if (why := probe(self._sandbox, self._limits)) is not None:
            raise UserError(
                f"item '{item.name}': a trivial program does not run within {item.timeout_s:g} s and "
                f"{item.memory_mb} MB ({why}): raise timeout_s or memory_mb"
            )

    def __call__(self, samples: Sequence[GraderInput]) -> list[Verdict]:
        tests = [self._tests(sample) for sample in samples]
        codes = [python_code(sample.response) for sample in samples]
        futures = [_pool().submit(self._verdict, code, some) for code, some in zip(codes, tests, strict=True)]
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()

    def _tests(self, sample: GraderInput) -> list[AnyTest] | MalformedTests:
        where = f"item '{self._item.name}', tests"
        try:
            tests = row_tests(sample.row, self._item.tests, where)
        except MalformedTests as error:
            self._notify(f"{where}: rows without a score: {error}")
            return error
        telling = [test for test in tests if not isinstance(test, ProgramTest) or test.expected.strip()]
        if tests and not telling:
            return MalformedTests("every expected output is empty, which a program that does nothing prints too")
        if len(telling) < len(tests):
            self._notify(f"{where}: tests that expect no output are not run: a program that does nothing passes")
            tests = telling
        if len(tests) > MAX_TESTS:
            self._notify(f"{where}: of rows with more than {MAX_TESTS} tests only the first {MAX_TESTS} are run")
        return tests[:MAX_TESTS]

    def _notify(self, text: str) -> None:
        if text not in self._notified:
            self._notified.add(text)
            self._notice(text)

    def _verdict(self, code: str, tests: Sequence[AnyTest] | MalformedTests) -> Verdict:
        if isinstance(tests, MalformedTests):
            return Verdict.missing(f"the row's tests are malformed: {tests}")
        if not tests:
            return Verdict.missing("the row has no tests")
        if not code.strip():
            return Verdict(0.0, reasoning="there is no code")
        if len(code) > MAX_CODE:
            return Verdict(0.0, reasoning=f"the code is longer than {MAX_CODE} characters")
        results: list[SandboxResult] = []
        for one in tests:
            if sum(result.clock_timeout for result in results) == MAX_CLOCK_TIMEOUTS:
                results += [SandboxResult("test failed", "not run")] * (len(tests) - len(results))
                break
            results.append(run_test(self._sandbox, self._limits, code, one))
            if results[-1].end == "broken":
                return Verdict.missing(f"the sandbox failed: {results[-1].why}")
            if results[-1].end == "missing":
                return Verdict.missing(f"test {len(results)} of the row tests nothing: {results[-1].why}")
            if results[0].end == "code failed":
                return Verdict(0.0, reasoning=f"the code fails before any test: {results[0].why}")
        passed = sum(result.end == "passed" for result in results)
        failed = [f"test {n}: {result.why}" for n, result in enumerate(results, start=1) if result.why]
        summary = f"{passed} of {len(results)} tests pass"
        return Verdict(passed / len(results), reasoning="; ".join([summary, *failed[:3]]))


def python_code(response: str) -> str:
    """The first Python code fence, else the first fence without a language, else the whole text."""
    fences = _fences(response)
    own = [body for language, body in fences if language in PYTHON]
    unnamed = [body for language, body in fences if not language]
    return next(iter([*own, *unnamed]), response)


def _fences(text: str) -> list[tuple[str, str]]:
    """Languages and bodies. The last fence may be open if the response was truncated."""
    fences: list[tuple[str, list[str]]] = []
    is_open = False
    for line in text.split("\n"):
        mark = line.strip()
        if is_open and mark == "```":
            is_open = False
        elif is_open:
            fences[-1][1].append(line)
        elif mark.startswith("```") and "```" not in mark[3:]:
            fences.append(("".join(mark[3:].split()[:1]).lower(), []))
            is_open = True
    return [(language, dedent("\n".join(lines))) for language, lines in fences]
