"""The `python` tool: the model's code, run in the sandbox of the code grader. Each call starts anew."""

from collections.abc import Callable
from functools import cache

from vigneron.errors import UserError
from vigneron.sandbox.backends import Limits
from vigneron.sandbox.runner import START_S, Script, find_sandbox, run_test
from vigneron.sandbox.testers import end_idle
from vigneron.threads import CallThreads, cores

MAX_CODE = 100_000
MARGIN_S = 15.0
"""For the sandbox to end, after its limits."""


class CodeError(Exception):
    """The code failed; the text is what it printed before, and the error's last line."""


@cache
def sandbox_threads() -> CallThreads:
    """At most one sandbox per core."""
    return CallThreads(cores(), "python-tool")


def longest_s(timeout_s: float) -> float:
    """Until a call has ended by the sandbox's own limits."""
    return START_S + timeout_s + MARGIN_S


def python_tool(timeout_s: float, memory_mb: int = 512) -> Callable[[str], str]:
    """Raises a `UserError` if there is no sandbox."""
    try:
        sandbox = find_sandbox()
    except UserError as error:
        raise UserError(f"the tool 'python': {error}") from None
    end_idle()  # of the trial, which had a test
    limits = Limits(timeout_s, memory_mb, wall_s=timeout_s)

    def python(code: str) -> str:
        """Run Python code and return what it prints, and the value of its last expression. Each call starts anew.

        Args:
            code: The Python code to run. It has the standard library, no network and no files of the user.
        """
        if len(code) > MAX_CODE:
            raise CodeError(f"error: the code is longer than {MAX_CODE} characters")
        result = run_test(sandbox, limits, code, Script())
        if result.end == "passed":
            return result.printed.rstrip("\n")
        why = f"the sandbox failed: {result.why}" if result.end == "broken" else result.why
        printed = result.printed if result.printed.endswith("\n") or not result.printed else f"{result.printed}\n"
        raise CodeError(f"{printed}error: {why or 'the code failed'}")

    return python
