"""Stability figures, worked out by hand, and what must hold of every run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vigneron.run_store.stability import (
    Collapses,
    drop_from_best,
    entropy_collapses,
    final_window,
    largest_rise,
    share_not_above_zero,
    stability,
)

values = st.lists(st.floats(min_value=-100, max_value=100), max_size=60)
entropies = st.lists(st.floats(min_value=0, max_value=10), max_size=60)


@pytest.mark.parametrize(
    ("logged", "expected"),
    [
        ([], (0, 0)),
        ([2.0, 1.0, 0.2], (0, 0)),  # the floor is 0.2, and 0.2 is not below it
        ([2.0, 0.19], (1, 0)),  # collapsed for good
        ([2.0, 0.1, 0.1, 0.3, 0.1], (1, 0)),  # 0.3 is not back at twice the floor: one collapse, not two
        ([2.0, 0.1, 0.4, 0.1], (2, 1)),
        ([2.0, 0.1, 0.5, 0.1, 1.0], (2, 2)),
        ([0.3, 0.06, 0.04], (1, 0)),  # a tenth would be 0.03: the floor is 0.05
        ([0.01, 0.02], (0, 0)),  # started below the floor: it has not fallen
        ([0.01, 0.2, 0.01], (1, 0)),  # came up first, which recovers from nothing
    ],
)
def test_collapses_by_hand(logged: list[float], expected: tuple[int, int]) -> None:
    assert entropy_collapses(logged) == Collapses(*expected)


@given(entropies)
def test_at_most_the_last_collapse_is_not_recovered_from(logged: list[float]) -> None:
    found = entropy_collapses(logged)
    assert 0 <= found.collapsed - found.recovered <= 1
    assert found.collapsed <= len(logged) / 2


@given(entropies, st.floats(min_value=0, max_value=10))
def test_a_longer_run_never_has_fewer_collapses(logged: list[float], next_one: float) -> None:
    before, after = entropy_collapses(logged), entropy_collapses([*logged, next_one])
    assert after.collapsed >= before.collapsed
    assert after.recovered >= before.recovered


def test_largest_rise_by_hand() -> None:
    assert largest_rise([0.0, 0.5, 0.25, 1.5, 1.0]) == 1.25
    assert largest_rise([3.0, 2.0]) == 0.0
    assert largest_rise([3.0]) is None


@given(values)
def test_no_rise_is_larger_than_the_whole_range(logged: list[float]) -> None:
    rise = largest_rise(logged)
    if rise is not None:
        assert 0 <= rise <= max(logged) - min(logged)


def test_the_final_window_is_a_twentieth_within_bounds() -> None:
    assert [final_window(n) for n in (1, 100, 101, 140, 4000, 4001, 10_000)] == [5, 5, 6, 7, 200, 200, 200]


def test_drop_from_best_by_hand() -> None:
    # Five at a time: the best five are the ones, the last five 1, 0, 0, 0, 0.
    assert drop_from_best([0.0] * 3 + [1.0] * 5 + [0.0] * 4) == pytest.approx(0.8)
    assert drop_from_best([0.1, 0.9]) == 0.0  # shorter than a window
    assert drop_from_best([]) is None


@given(values)
def test_a_drop_is_within_the_range(logged: list[float]) -> None:
    drop = drop_from_best(logged)
    if drop is not None:
        assert 0 <= drop <= max(logged) - min(logged) + 1e-9


@given(st.lists(st.floats(min_value=-100, max_value=100), min_size=1, max_size=60))
def test_a_run_that_only_gets_better_has_no_drop(logged: list[float]) -> None:
    assert drop_from_best(sorted(logged)) == pytest.approx(0, abs=1e-9)


def test_share_without_reward_by_hand() -> None:
    assert share_not_above_zero([0.0, 0.5, -0.5, 0.25]) == 0.5
    assert share_not_above_zero([]) is None


def test_all_of_them_from_records() -> None:
    records = [
        {"step": 0, "eval/accuracy": 0.1},
        {"step": 1, "reward": 0.0, "entropy": 2.0, "kl": 0.0, "kl_previous": 0.5},
        {"step": 2, "reward": 0.5, "entropy": 0.1, "kl": 0.75},
        {"step": 3, "reward": None, "entropy": 1.0, "kl": 1.0, "kl_previous": 0.25},
    ]
    assert stability(records) == {
        "entropy_collapses": 1,
        "entropy_recoveries": 1,
        "kl_largest_rise": pytest.approx(0.75 * 0.1 / 0.19),  # of the smoothed curve: 0, (0.1 · 0.75) / 0.19, …
        "kl_previous_largest": 0.5,
        "reward_drop": 0.0,
        "steps_without_reward": 0.5,
    }


def test_what_was_not_logged_has_no_figure() -> None:
    """An SFT run has entropies alone; a run of no steps nothing."""
    assert set(stability([{"step": 0}]).values()) == {None}
    found = stability([{"step": 1, "loss/nll": 1.0, "entropy": 2.0}])
    assert {key for key, value in found.items() if value is not None} == {"entropy_collapses", "entropy_recoveries"}
