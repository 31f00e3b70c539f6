"""Programs that are paid for nothing score 0 in every format of tests, and honest ones 1."""

import pytest

from support.reward_hacks import CHEATS, HONEST, PROGRAM, ROWS
from support.sandboxed import graded_on, needs_sandbox

pytestmark = pytest.mark.slow


def test_the_suite_is_large() -> None:
    assert len(CHEATS) >= 40
    assert len(set(CHEATS.values())) == len(CHEATS)


@needs_sandbox
@pytest.mark.parametrize("style", ROWS)
def test_a_cheat_scores_0_and_the_honest_program_1(style: str) -> None:
    added = PROGRAM if style == "stdin" else ""
    honest, *cheats = graded_on(ROWS[style], [code + added for code in (HONEST, *CHEATS.values())])
    assert (honest.score, honest.why) == (1, None), honest.reasoning
    wrong = {name: (v.score, v.reasoning, v.why) for name, v in zip(CHEATS, cheats, strict=True) if v.score != 0}
    assert wrong == {}
