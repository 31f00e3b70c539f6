"""Programs that are paid for nothing score 0 in every format of tests, and honest ones 1."""

from functools import cache
from typing import Any

import pytest

from support.reward_hacks import CHEATS, HONEST, PROGRAM, ROWS
from support.sandboxed import needs_sandbox
from vigneron.rewards.graders.code import CodeGrader
from vigneron.rubric.model import CodeItem
from vigneron.sources.verdict import GraderInput, Verdict

pytestmark = pytest.mark.slow


@cache
def grader(timeout_s: float = 1.0) -> CodeGrader:
    return CodeGrader(CodeItem(name="it", description="d", flow="code", timeout_s=timeout_s))


def graded(codes: list[str], row: dict[str, Any]) -> list[Verdict]:
    return grader()([GraderInput("q", code, row) for code in codes])


def test_the_suite_is_large() -> None:
    assert len(CHEATS) >= 40
    assert len(set(CHEATS.values())) == len(CHEATS)


@needs_sandbox
@pytest.mark.parametrize("style", ROWS)
def test_a_cheat_scores_0_and_the_honest_program_1(style: str) -> None:
    added = PROGRAM if style == "stdin" else ""
    honest, *cheats = graded([code + added for code in (HONEST, *CHEATS.values())], ROWS[style])
    assert (honest.score, honest.why) == (1, None), honest.reasoning
    wrong = {name: (v.score, v.reasoning, v.why) for name, v in zip(CHEATS, cheats, strict=True) if v.score != 0}
    assert wrong == {}
