"""The interval of a change on the same rows: by hand, its symmetries, and how often it is wrong of no change."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vigneron.core.paired import paired_interval, shares_interval

CHANGES = st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.25, 1.0]), min_size=2, max_size=40)


@pytest.mark.parametrize(
    ("rises", "falls", "rows", "low", "high"),
    [
        # centre −1/8; σ = √(1 + 1 − 1/8) / 8 = 0.17116; t(5) = 2.5706: −0.125 ± 0.43999
        (0, 1, 6, -0.56499, 0.31499),
        # centre 3/5; σ = √(3 + 1 − 9/5) / 5 = 0.29665; t(2) = 4.3027: 0.6 ± 1.2764, and no change is above 1
        (3, 0, 3, -0.67637, 1.0),
        # centre 6/8; σ = √(6 + 1 − 36/8) / 8 = 0.19764; t(5) = 2.5706: 0.75 ± 0.50805
        (6, 0, 6, 0.24195, 1.0),
        # centre 0; σ = 1 / 102; t(99) = 1.9842
        (0, 0, 100, -0.01945, 0.01945),
    ],
)
def test_by_hand(rises: int, falls: int, rows: int, low: float, high: float) -> None:
    changes = [1.0] * rises + [-1.0] * falls + [0.0] * (rows - rises - falls)
    mean = (rises - falls) / rows
    assert paired_interval(changes, 1.0) == pytest.approx((mean, low, high), abs=2e-5)


@given(CHANGES)
def test_it_holds_the_mean_turns_with_the_sign_and_scales(changes: list[float]) -> None:
    found = paired_interval(changes, 1.0)
    turned = paired_interval([-change for change in changes], 1.0)
    scaled = paired_interval([3 * change for change in changes], 3.0)
    assert found is not None
    assert turned is not None
    assert -1.0 <= found.low <= found.mean <= found.high <= 1.0
    assert found == pytest.approx((-turned.mean, -turned.high, -turned.low), abs=1e-12)
    assert scaled == pytest.approx(tuple(3 * value for value in found), abs=1e-12)


@pytest.mark.parametrize("rows", [3, 6, 16, 40])
def test_of_no_true_change_it_leaves_out_0_in_at_most_8_of_100_cases(rows: int) -> None:
    """Exactly, over all outcomes: each row changes with probability q, up or down alike. 5 of 100 are intended; few
    rows come in lumps (16 rows that all change: 7.7)."""
    for q in (0.1, 0.4, 1.0):
        wrong = 0.0
        for changed in range(rows + 1):
            chance = math.comb(rows, changed) * q**changed * (1 - q) ** (rows - changed)
            for rises in range(changed + 1):
                changes = [1.0] * rises + [-1.0] * (changed - rises) + [0.0] * (rows - changed)
                found = paired_interval(changes, 1.0)
                assert found is not None
                wrong += chance * math.comb(changed, rises) / 2**changed * (not found.low <= 0 <= found.high)
        assert wrong < 0.08, (rows, q)


def test_one_row_has_none() -> None:
    assert paired_interval([1.0], 1.0) is None
    assert shares_interval(0.5, 1.0, 0) is None


def test_shares_of_which_no_rows_are_known() -> None:
    """½ and ¾ of 8: with one of each kind added 5/10 and 7/10. σ = √((0.25 + 0.21) / 10) = 0.21448, times 1.96."""
    assert shares_interval(0.5, 0.75, 8) == pytest.approx((0.25, 0.2 - 0.42037, 0.2 + 0.42037), abs=1e-4)
