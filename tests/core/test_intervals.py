"""Intervals over seeds and rows: small cases by hand, known distributions, and how often they hold the truth."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vigneron.core.intervals import seeds_and_rows_interval
from vigneron.core.paired import student_t


@pytest.mark.parametrize(
    ("freedom", "level", "t"),
    [
        (1.0, 0.95, 12.706),
        (2.0, 0.95, 4.303),
        (3.0, 0.95, 3.182),
        (10.0, 0.95, 2.228),
        (30.0, 0.99, 2.750),
        (1e6, 0.95, 1.96),
    ],
)
def test_students_t_is_the_printed_table(freedom: float, level: float, t: float) -> None:
    assert student_t(freedom, level) == pytest.approx(t, abs=6e-4)


def test_seeds_alone_are_students_interval() -> None:
    """0.70, 0.74, 0.78: mean 0.74, s = 0.04, 4.303 · 0.04 / √3 = 0.0994; the draws are symmetric."""
    found = seeds_and_rows_interval(torch.tensor([[0.70], [0.74], [0.78]]))
    assert found == pytest.approx((0.74, 0.74 - 0.09937, 0.74 + 0.09937), abs=1e-4)


def test_rows_alone_have_the_bootstraps_skew() -> None:
    """Rows 0, 0, 1: two are drawn of three, so means are 0, ½ or 1, and 0 and 1 are the 2.5 % and 97.5 % quantiles.

    They are ⅓ below and ⅔ above the mean ⅓. s = √⅓, so the width is 2 · 4.303 · √⅓ / √3 = 2.8685.
    """
    found = seeds_and_rows_interval(torch.tensor([[0.0, 0.0, 1.0]]))
    assert found == pytest.approx((1 / 3, 1 / 3 - 2.8685 / 3, 1 / 3 + 2 * 2.8685 / 3), abs=1e-3)


def test_a_variance_by_hand() -> None:
    """Two seeds, two rows: 1 0 / 1 1. Means of rows 1, ½; of seeds ½, 1; of all ¾.

    var(rows' means) / 2 = 1/16. MS_seeds = 2 · var(½, 1) = ¼; the rest is ± ¼ four times, for one degree of freedom.
    So seeds add nothing: σ² = 1/16 with one degree of freedom, and the width is 2 · 12.706 / 4.
    """
    found = seeds_and_rows_interval(torch.tensor([[1.0, 0.0], [1.0, 1.0]]))
    assert found is not None
    assert found.mean == 0.75
    assert found.high - found.low == pytest.approx(2 * 12.706 / 4, abs=1e-3)


def test_one_number_has_none_and_equal_ones_no_width() -> None:
    assert seeds_and_rows_interval(torch.ones(1, 1)) is None
    assert seeds_and_rows_interval(torch.ones(3, 20)) == (1.0, 1.0, 1.0)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 4), st.integers(1, 30), st.integers(0, 999), st.floats(-3, 3), st.floats(0.1, 5))
def test_shifts_and_scales_go_along_and_the_mean_is_inside(
    seeds: int, rows: int, draw: int, shift: float, scale: float
) -> None:
    scores_SR = torch.randn(seeds, rows, generator=torch.Generator().manual_seed(draw), dtype=torch.float64)
    found = seeds_and_rows_interval(scores_SR, resamples=200)
    if seeds == rows == 1:
        assert found is None
        return
    assert found is not None
    assert found.low <= found.mean <= found.high
    moved = seeds_and_rows_interval(shift + scale * scores_SR, resamples=200)
    assert moved == pytest.approx([shift + scale * value for value in found], abs=1e-9)


def test_an_arm_minus_another_of_its_own_seeds() -> None:
    """Equal rows cancel: what is left is each arm's seeds, s²/S of each, and twice one degree of freedom."""
    rows_R = torch.tensor([0.1, 0.5, 0.9, 0.3])
    first_SR = rows_R + torch.tensor([[0.00], [0.02]])
    second_TR = rows_R + torch.tensor([[-0.10], [-0.08]])
    found = seeds_and_rows_interval(first_SR, second_TR)
    assert found is not None
    assert found.mean == pytest.approx(0.10)
    sigma = math.sqrt(2 * (2 * 0.01**2) / 2)
    assert found.high - found.low == pytest.approx(2 * 4.303 * sigma, rel=1e-3)


def covered(by_seed: float, by_row: float, rest: float, seeds: int, *, paired: bool = True, times: int = 120) -> float:
    """How often the interval of drawn scores, whose true mean is 0, holds 0."""
    generator = torch.Generator().manual_seed(1)

    def arm(row_1R: torch.Tensor) -> torch.Tensor:
        noise_SR = torch.randn(seeds, 60, generator=generator)
        return by_seed * torch.randn(seeds, 1, generator=generator) + row_1R + rest * noise_SR

    inside = 0
    for number in range(times):
        row_1R = by_row * torch.randn(1, 60, generator=generator)
        scores = (arm(row_1R),) if paired else (arm(row_1R), arm(row_1R))
        found = seeds_and_rows_interval(*scores, seed=number, resamples=100)
        assert found is not None
        inside += found.low <= 0 <= found.high
    return inside / times


@pytest.mark.slow
@pytest.mark.parametrize(
    ("by_seed", "by_row", "rest", "seeds"),
    [(0.1, 0.0, 0.05, 3), (0.1, 0.0, 0.05, 8), (0.0, 0.0, 0.3, 3), (0.0, 0.4, 0.1, 3), (0.03, 0.2, 0.3, 4)],
)
@pytest.mark.parametrize("paired", [True, False])
def test_95_of_100_intervals_hold_the_truth(
    by_seed: float, by_row: float, rest: float, seeds: int, paired: bool
) -> None:
    """Whatever varies: seeds, rows, or each score. Of 120 draws of 0.95, fewer than 108 come once in 60."""
    assert covered(by_seed, by_row, rest, seeds, paired=paired) >= 0.90


def test_an_interval_that_is_never_too_narrow_is_also_not_too_wide() -> None:
    """Where only each score varies, 95 % of 0.3 / √(3 · 60) is ± 0.044, and a crossed bootstrap would give ± 0.076."""
    scores_SR = 0.3 * torch.randn(3, 60, generator=torch.Generator().manual_seed(4))
    found = seeds_and_rows_interval(scores_SR)
    assert found is not None
    assert (found.high - found.low) / 2 < 0.06
