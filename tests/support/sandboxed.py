"""Code in a sandbox (bubblewrap, podman or docker): which tests need one, and a grader of code."""

from functools import cache
from typing import Any

import pytest

from vigneron.errors import UserError
from vigneron.rewards.graders.code import CodeGrader
from vigneron.rubric.model import CodeItem
from vigneron.sandbox.runner import find_sandbox
from vigneron.sources.verdict import GraderInput, Verdict

try:
    find_sandbox()
    WHY_NOT = ""
except UserError as error:
    WHY_NOT = str(error)
needs_sandbox = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)

ADD = "def add(a, b):\n    return a + b\n"


def item(**options: Any) -> CodeItem:
    return CodeItem(name="it", description="d", flow="code", **options)


@cache
def scorer(**options: Any) -> CodeGrader:
    return CodeGrader(item(**options))


def graded(code: str, *tests: str, **options: Any) -> Verdict:
    (verdict,) = scorer(**options)([GraderInput("q", code, {"tests": list(tests)})])
    return verdict


def grader(timeout_s: float = 1.0) -> CodeGrader:
    return scorer(timeout_s=timeout_s)


def graded_on(row: dict[str, Any], codes: list[str]) -> list[Verdict]:
    return grader()([GraderInput("q", code, row) for code in codes])
