"""pass@k from verdicts of which some are missing."""

import math

import pytest

from vigneron.commands.pass_at_k import pass_table
from vigneron.training.pass_at_k import estimate

VERDICTS = [[True, False, False, False], [True, None, False, False], [None, False, True, None], [None] * 4]


def test_a_sample_without_a_verdict_is_as_if_it_had_not_been_drawn() -> None:
    """c = 1 of n = 4, 3, 2: 1/n at k = 1, k/n at k = 2."""
    one, two, four = (estimate(VERDICTS, k, samples=4, seed=0) for k in (1, 2, 4))
    assert one.value == pytest.approx((1 / 4 + 1 / 3 + 1 / 2) / 3)
    assert two.value == pytest.approx((2 / 4 + 2 / 3 + 2 / 2) / 3)
    assert four.value == 1.0
    assert [(of_k.prompts, of_k.left_out) for of_k in (one, two, four)] == [(3, 1), (3, 1), (1, 3)]
    assert one.missing == two.missing == four.missing == 7
    assert one.low <= one.value <= one.high


def test_the_table_says_what_is_left_out() -> None:
    three, four = (estimate(VERDICTS[1:], k, samples=4, seed=0) for k in (3, 4))
    assert (four.prompts, four.left_out) == (0, 3)
    assert math.isnan(four.value)
    table = pass_table([three, four])
    assert table.caption == (
        "3 prompts, 4 samples each; interval: bootstrap over prompts; 7 samples have no verdict and are ignored; "
        "pass@3 leaves out 2 prompts with fewer than 3 verdicts; pass@4 leaves out 3 prompts with fewer than 4 verdicts"
    )
    assert list(table.columns[1].cells) == ["1.0000", "none"]


def test_without_missing_verdicts_nothing_is_said_of_them() -> None:
    table = pass_table([estimate([[True, False], [False, False]], 1, samples=2, seed=0)])
    assert table.caption == "2 prompts, 2 samples each; interval: bootstrap over prompts"
