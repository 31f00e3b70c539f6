"""The trust region's maths, by hand and on random quadratics."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vigneron.core.trust_region import conjugate_gradient, largest_step, line_search

quick = settings(max_examples=60, deadline=None)


def positive_matrix(size: int, seed: int) -> torch.Tensor:
    torch.manual_seed(seed)
    root = torch.randn(size, size, dtype=torch.float64)
    return root @ root.T + 0.1 * torch.eye(size, dtype=torch.float64)


def test_conjugate_gradient_by_hand() -> None:
    # [[4, 1], [1, 3]] x = [1, 2]: x = [1/11, 7/11], reached after two directions.
    matrix = torch.tensor([[4.0, 1.0], [1.0, 3.0]], dtype=torch.float64)
    target = torch.tensor([1.0, 2.0], dtype=torch.float64)
    found = conjugate_gradient(lambda x: matrix @ x, target, iterations=2)
    torch.testing.assert_close(found, torch.tensor([1 / 11, 7 / 11], dtype=torch.float64))
    # After one: x = (bᵀb / bᵀAb) b = 5/20 · b.
    first = conjugate_gradient(lambda x: matrix @ x, target, iterations=1)
    torch.testing.assert_close(first, 0.25 * target)


@quick
@given(st.integers(1, 6), st.integers(0, 2**31))
def test_conjugate_gradient_solves_every_positive_system(size: int, seed: int) -> None:
    matrix = positive_matrix(size, seed)
    target = torch.randn(size, dtype=torch.float64)
    found = conjugate_gradient(lambda x: matrix @ x, target, iterations=5 * size, tolerance=1e-24)
    torch.testing.assert_close(matrix @ found, target, atol=1e-6, rtol=1e-6)


def test_nothing_to_solve_is_no_step() -> None:
    assert conjugate_gradient(lambda x: x, torch.zeros(3)).tolist() == [0.0, 0.0, 0.0]


@quick
@given(st.integers(1, 5), st.integers(0, 2**31), st.floats(1e-4, 1.0))
def test_the_largest_step_uses_up_the_region_and_no_more(size: int, seed: int, delta: float) -> None:
    matrix = positive_matrix(size, seed)
    direction = torch.randn(size, dtype=torch.float64)
    step = largest_step(float(direction @ matrix @ direction), delta) * direction
    assert float(0.5 * step @ matrix @ step) == pytest.approx(delta, rel=1e-9)


def test_without_curvature_there_is_no_step() -> None:
    assert largest_step(0.0, 0.1) == 0.0
    assert largest_step(-1.0, 0.1) == 0.0
    assert largest_step(math.nan, 0.1) == 0.0


def test_line_search_by_hand() -> None:
    # The KL is share², δ = 0.3: 1 and ½ … 1 is too far (1 > 0.3), ½ is within (0.25).
    asked: list[float] = []

    def evaluate(share: float) -> tuple[float, float]:
        asked.append(share)
        return -share, share**2

    assert line_search(evaluate, loss_before=0.0, delta=0.3) == 0.5
    assert asked == [1.0, 0.5]


def test_a_step_that_does_not_improve_is_refused() -> None:
    assert line_search(lambda share: (share, 0.0), loss_before=0.0, delta=1.0) is None
    assert line_search(lambda share: (0.0, 0.0), loss_before=0.0, delta=1.0) is None
    assert line_search(lambda share: (math.nan, 0.0), loss_before=0.0, delta=1.0) is None
    assert line_search(lambda share: (-1.0, math.nan), loss_before=0.0, delta=1.0) is None


@quick
@given(st.integers(0, 2**31), st.floats(1e-3, 1.0))
def test_what_is_accepted_is_better_and_within_the_region(seed: int, delta: float) -> None:
    torch.manual_seed(seed)
    bend, pull = torch.rand(2).tolist()

    def evaluate(share: float) -> tuple[float, float]:
        return bend * share**2 - pull * share, 3 * share**2

    share = line_search(evaluate, loss_before=0.0, delta=delta)
    if share is not None:
        loss, kl = evaluate(share)
        assert loss < 0.0
        assert kl <= delta
        assert share == 1.0 or not (evaluate(2 * share)[0] < 0.0 and evaluate(2 * share)[1] <= delta)
