"""Lemma 8.1 of rlmt-grape, and where it ends."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import tensor

from vigneron.core.variance import confident_mean_variance, mean_variance, rubric_variance

VARIANCES = st.lists(st.floats(0.01, 100.0), min_size=1, max_size=8)


def test_by_hand() -> None:
    variances = tensor([1.0, 4.0])
    assert mean_variance(variances).item() == 1.25
    # φ = (1, 1/4): 1 / (1 + 1/4)
    assert confident_mean_variance(variances, 1 / variances).item() == pytest.approx(0.8)


@given(VARIANCES, st.floats(0.1, 10.0))
def test_the_lemma(variances: list[float], k: float) -> None:
    found = tensor(variances, dtype=torch.float64)
    confident = confident_mean_variance(found, k / found)
    assert confident <= mean_variance(found) * (1 + 1e-9)
    assert confident.item() == pytest.approx(1 / sum(1 / v for v in variances))


@given(VARIANCES, st.data())
def test_no_other_confidences_do_better(variances: list[float], data: st.DataObject) -> None:
    found = tensor(variances, dtype=torch.float64)
    size = len(variances)
    others = tensor(data.draw(st.lists(st.floats(0.01, 1.0), min_size=size, max_size=size)), dtype=torch.float64)
    assert confident_mean_variance(found, 1 / found) <= confident_mean_variance(found, others) * (1 + 1e-9)


def test_as_samples_have_it() -> None:
    """Drawn, not derived: half a million scores with these variances."""
    variances = tensor([0.2, 1.0, 3.0], dtype=torch.float64)
    scores = torch.randn(500_000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * variances.sqrt()
    confidences = 1 / variances
    assert scores.mean(1).var().item() == pytest.approx(mean_variance(variances).item(), rel=0.01)
    weighed = (scores * confidences).sum(1) / confidences.sum()
    assert weighed.var().item() == pytest.approx(confident_mean_variance(variances, confidences).item(), rel=0.01)


def test_rubric_weights_break_it() -> None:
    """σ² = (1, 4), φ = (1, 1/4), ω = (0.9, 0.1): confidence on top of a weight that already leaned there."""
    variances, weights = tensor([1.0, 4.0]), tensor([0.9, 0.1])
    plain = rubric_variance(variances, weights, torch.ones(2))
    assert plain.item() == pytest.approx(0.81 + 0.04)
    # 2 · (0.9 · 0.8, 0.1 · 0.2) = (1.44, 0.04)
    weighed = rubric_variance(variances, weights, 1 / variances)
    assert weighed.item() == pytest.approx(1.44**2 + 4 * 0.04**2)
    assert weighed > plain
    # Not for the greater scale alone: brought back to a sum of one, (0.72, 0.02) / 0.74, it is still above.
    assert (weighed / 1.48**2).item() == pytest.approx((0.72**2 + 4 * 0.02**2) / 0.74**2)
    assert weighed / 1.48**2 > plain
