"""Masks: what is masked out never spreads."""

import math

import pytest
import torch

from vigneron.core.masked import length_mask, masked_sum, where_finite

BAD = [math.nan, math.inf, -math.inf]


@pytest.mark.parametrize("bad", BAD)
def test_where_finite_gives_nan_without_gradient_where_any_input_is_not_finite(bad: float) -> None:
    a = torch.tensor([2.0, bad, 3.0, 5.0], requires_grad=True)
    b = torch.tensor([4.0, 1.0, bad, 7.0], requires_grad=True)
    values = where_finite(torch.mul, a, b)
    assert values.isnan().tolist() == [False, True, True, False]
    assert values[[0, 3]].tolist() == [8.0, 35.0]
    values[[0, 3]].sum().backward()
    # ∂(ab)/∂a = b and ∂(ab)/∂b = a where both are finite, 0 (not 0 · NaN) elsewhere.
    assert a.grad.tolist() == [4.0, 0.0, 0.0, 7.0]
    assert b.grad.tolist() == [2.0, 0.0, 0.0, 5.0]


def test_where_finite_broadcasts_its_inputs() -> None:
    column, row = torch.tensor([[1.0], [math.nan]]), torch.tensor([[10.0, 20.0]])
    values = where_finite(torch.add, column, row)
    assert values[0].tolist() == [11.0, 21.0]
    assert values[1].isnan().all()


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
@pytest.mark.parametrize("bad", BAD)
def test_masked_sum_adds_a_rows_kept_positions_only(dtype: torch.dtype, bad: float) -> None:
    values = torch.tensor([[1.0, 2.0, bad], [bad, 4.0, 8.0], [bad, bad, bad]], requires_grad=True)
    mask = torch.tensor([[1, 1, 0], [0, 1, 1], [0, 0, 0]]).to(dtype)
    sums = masked_sum(values, mask)
    assert sums.tolist() == [3.0, 12.0, 0.0]
    sums.sum().backward()
    assert values.grad.tolist() == [[1.0, 1.0, 0.0], [0.0, 1.0, 1.0], [0.0, 0.0, 0.0]]


def test_masked_sum_does_not_hide_a_nan_that_is_kept() -> None:
    assert masked_sum(torch.tensor([[1.0, math.nan]]), torch.tensor([[1, 1]])).isnan().item()


def test_length_mask_is_one_on_the_first_positions() -> None:
    mask = length_mask(torch.tensor([2, 0, 3]), 3)
    assert mask.tolist() == [[True, True, False], [False, False, False], [True, True, True]]
