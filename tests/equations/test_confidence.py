"""Lemma 8.1 of rlmt-grape on drawn scores, and where it ends: rubric weights, which the paper warns of."""

import pytest
import torch
from torch import Tensor, tensor

from vigneron.core.information import variance_of_mean
from vigneron.rewards.rubric import grape_reward

DRAWS = 200_000


def drawn(variances: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return 0.5 + torch.randn(DRAWS, len(variances), generator=generator, dtype=torch.float64) * variances.sqrt()


def spread(variances: Tensor, weights: Tensor, confidences: Tensor) -> float:
    """The variance of eq. 15's reward, divided so that a perfect answer earns 1, over many drawn scores."""
    scores = drawn(variances)
    found = grape_reward(scores, confidences.expand_as(scores), weights, normalise=True)
    return float(found.var())


def test_the_lemma_holds_for_rewards_of_equal_weights() -> None:
    variances = tensor([0.2, 1.0, 3.0], dtype=torch.float64)
    equal = torch.full((3,), 1 / 3, dtype=torch.float64)
    plain, confident = spread(variances, equal, torch.ones(3).double()), spread(variances, equal, 0.1 / variances)
    assert plain == pytest.approx(float(variance_of_mean(variances)), rel=0.02)
    assert confident == pytest.approx(float(variance_of_mean(variances, 1 / variances)), rel=0.02)
    assert confident < 0.4 * plain


def test_rubric_weights_break_it() -> None:
    """σ² = (1, 4), φ = (1, 1/4), ω = (0.9, 0.1): confidence on top of a weight that leaned there already."""
    variances, weights = tensor([1.0, 4.0]).double(), tensor([0.9, 0.1]).double()
    # 0.81 · 1 + 0.01 · 4, against (0.9, 0.025) / 0.925 squared: (0.81 + 0.000625 · 4) / 0.855625
    assert float(variance_of_mean(variances, weights)) == pytest.approx(0.85)
    assert float(variance_of_mean(variances, weights / variances)) == pytest.approx(0.8125 / 0.855625)
    plain, confident = spread(variances, weights, torch.ones(2).double()), spread(variances, weights, 1 / variances)
    assert plain == pytest.approx(0.85, rel=0.02)
    assert confident == pytest.approx(0.9496, rel=0.02)
