"""Lines and bands: what is drawn is what was logged, thinned out without losing a spike."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vigneron.run_store.series import Band, over_runs, series, smoothed, thinned, thinned_band

numbers = st.floats(min_value=-1e6, max_value=1e6)
lines = st.lists(numbers, max_size=900).map(lambda ys: ([float(x) for x in range(len(ys))], ys))


def test_what_is_no_finite_number_is_left_out() -> None:
    values = [1.0, None, math.inf, math.nan, True, "2", 3]
    records = [{"step": i, "kl": value, "episodes": 10 * i} for i, value in enumerate(values)]
    assert series(records, "kl") == ([0, 6], [1.0, 3])
    assert series(records, "kl", "episodes") == ([0, 60], [1.0, 3])


def test_runs_are_put_together_where_each_of_them_is() -> None:
    long, short, sparse = ([1, 2, 3], [0.0, 1.0, 2.0]), ([1, 2], [1.0, 3.0]), ([2], [5.0])
    assert over_runs([long, short, sparse]) == Band([1, 2, 3], [0.5, 3.0, 2.0], [0.0, 1.0, 2.0], [1.0, 5.0, 2.0])
    assert over_runs([]) == Band([], [], [], [])


@given(st.lists(lines, min_size=1, max_size=4))
def test_a_mean_lies_in_its_band(runs: list[tuple[list[float], list[float]]]) -> None:
    band = over_runs(runs)
    for mean, low, high in zip(band.means, band.lows, band.highs, strict=True):
        assert low - 1e-6 <= mean <= high + 1e-6


@given(lines, st.integers(min_value=2, max_value=400))
def test_thinning_keeps_extremes_and_order(line: tuple[list[float], list[float]], most: int) -> None:
    xs, ys = thinned(*line, most)
    assert len(xs) == len(ys) <= max(most, 0)
    assert xs == sorted(set(xs))
    assert set(zip(xs, ys, strict=True)) <= set(zip(*line, strict=True))
    if line[1]:
        assert (min(ys), max(ys)) == (min(line[1]), max(line[1]))


@given(lines, st.integers(min_value=2, max_value=400))
def test_a_thinned_band_covers_the_band(line: tuple[list[float], list[float]], most: int) -> None:
    xs, ys = line
    thin = thinned_band(Band(xs, ys, [y - 1 for y in ys], [y + 1 for y in ys]), most)
    assert 2 * len(thin.xs) <= max(most, 2)
    if ys:
        assert (min(thin.lows), max(thin.highs)) == (min(ys) - 1, max(ys) + 1)


@given(st.lists(numbers, max_size=300))
def test_smoothing_stays_within_what_was_logged(values: list[float]) -> None:
    out = smoothed(values)
    assert len(out) == len(values)
    if values:
        assert min(values) - 1e-3 <= min(out) <= max(out) <= max(values) + 1e-3


def test_a_longer_run_is_smoothed_over_more() -> None:
    noise = [float(i % 2) for i in range(10_000)]
    assert abs(smoothed(noise)[-1] - 0.5) < 0.01
    assert smoothed(noise[:40]) == pytest.approx(smoothed(noise[:40], weight=0.9))
