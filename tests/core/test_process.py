"""Rewards from the probabilities of steps, against numbers worked out by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vigneron.core import process

HOWS = ("min", "last", "product", "mean")


def table(*rows: list[float], behind: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    most = max(map(len, rows))
    filled = [[*row, *[behind] * (most - len(row))] for row in rows]
    return torch.tensor(filled, dtype=torch.float64), torch.tensor([len(row) for row in rows])


@pytest.mark.parametrize(
    ("how", "wanted"), [("min", [0.5, 0.2]), ("last", [0.8, 0.2]), ("product", [0.36, 0.2]), ("mean", [2.2 / 3, 0.2])]
)
def test_one_number_from_the_steps(how: process.Combine, wanted: list[float]) -> None:
    assert process.combined(*table([0.9, 0.5, 0.8], [0.2]), how).tolist() == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("how", "wanted"),
    [
        ("min", [0.9, -0.4, 0.0]),
        ("last", [0.9, -0.4, 0.3]),
        ("product", [0.9, -0.45, -0.09]),
        ("mean", [0.9, -0.2, 2.2 / 3 - 0.7]),
    ],
)
def test_what_each_step_changes(how: process.Combine, wanted: list[float]) -> None:
    assert process.step_rewards(table([0.9, 0.5, 0.8])[0], how)[0].tolist() == pytest.approx(wanted)


@given(st.lists(st.lists(st.floats(0.01, 1), min_size=1, max_size=6), min_size=1, max_size=4), st.floats(0.01, 1))
def test_step_rewards_sum_to_the_combined_one_whatever_stands_behind(rows: list[list[float]], behind: float) -> None:
    right_BK, steps_B = table(*rows, behind=behind)
    for how in HOWS:
        combined = process.combined(right_BK, steps_B, how).tolist()
        changes = process.step_rewards(right_BK, how).tolist()
        assert [sum(change[: len(row)]) for change, row in zip(changes, rows, strict=True)] == pytest.approx(combined)
        assert all(0 <= value <= 1 + 1e-9 for value in combined)
    means = process.geometric_mean(right_BK, steps_B).tolist()
    assert means == pytest.approx([math.prod(row) ** (1 / len(row)) for row in rows])


def weibull(n: int) -> float:
    return 10.735 * (1.5 / 8) * (n / 8) ** 0.5 * math.exp(-((n / 8) ** 1.5))


def released(s: float, n: int) -> float:
    """Written down once more, branch by branch."""
    if n <= 1:
        return 0.0
    if n <= 4:
        return s * s * math.exp(0.5 * n)
    base, late = s * math.exp(2), 1 / (1 + math.exp(-10 * (n - 4)))
    g = 1.0 if s > 0.88433 else -1.0 if s < 0.2 else (s - 0.21159) / 0.88433
    return s * (base * (1 - late) + late * base * math.exp(0.1 * (n - 4) * g))


def shaped(function: object, s: float, n: int) -> float:
    return float(function(torch.tensor([s], dtype=torch.float64), torch.tensor([n])))  # type: ignore[operator]


def test_the_bounded_form_by_hand() -> None:
    # n = 2: 10.735 · 0.1875 · √0.25 · e^{−0.125} = 2.0128125 · 0.5 · 0.8824969 = 0.8881502
    assert shaped(process.pspo, 0.5, 2) == pytest.approx(0.5 * 0.8881502, rel=1e-6)
    assert shaped(process.pspo, 1.0, 4) == pytest.approx(0.9994, abs=1e-3)
    assert max(weibull(n) for n in range(1, 200)) <= 1.0


def test_the_released_form_by_hand() -> None:
    # n = 2: s² e; n = 5, s = 0.9: 0.81 e² (1 − w + w e^{0.1}), w = σ(10) = 0.9999546
    assert shaped(process.pspo_released, 0.5, 2) == pytest.approx(0.25 * math.e)
    assert shaped(process.pspo_released, 0.9, 5) == pytest.approx(0.81 * 7.3890561 * (4.54e-5 + 0.9999546 * 1.1051709))
    assert shaped(process.pspo_released, 0.9, 1) == 0.0


@given(st.floats(0.001, 1), st.integers(1, 60))
def test_both_forms_against_plain_loops(s: float, n: int) -> None:
    assert shaped(process.pspo, s, n) == pytest.approx(s * weibull(n))
    assert shaped(process.pspo_released, s, n) == pytest.approx(released(s, n))


def test_one_form_is_bounded_in_the_number_of_steps_and_the_other_is_not() -> None:
    long_B = torch.arange(1, 101)
    for s, grows in ((0.95, True), (0.3, True), (0.1, False)):
        mean_B = torch.full((100,), s, dtype=torch.float64)
        assert float(process.pspo(mean_B, long_B).max()) <= s * 1.0001
        late_B = process.pspo_released(mean_B, long_B)[5:].diff()
        assert bool((late_B > 0).all()) is grows
