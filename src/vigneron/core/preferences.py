"""Agreement of predicted probabilities with preferences; the first text of a pair is the preferred one."""

import torch
from jaxtyping import Float
from torch import Tensor


def pair_accuracy(probability_N: Float[Tensor, " N"]) -> Float[Tensor, ""]:
    """The share of pairs whose preferred text has the higher probability; a tie counts half."""
    right_N = (probability_N > 0.5).double() + 0.5 * (probability_N == 0.5).double()
    return right_N.mean()


def expected_calibration_error(probability_N: Float[Tensor, " N"], bins: int = 10) -> Float[Tensor, ""]:
    """Σ_b (n_b / N) · |accuracy_b − confidence_b| over equal bins of the confidence max(p, 1 − p), from 0.5 to 1.

    p is the probability of the preferred text. Calibrated (0): of the pairs with confidence 0.8, 80 % are right.
    """
    p_N = probability_N.double()
    confidence_N = torch.maximum(p_N, 1 - p_N)
    right_N = (p_N > 0.5).double() + 0.5 * (p_N == 0.5).double()
    bin_N = ((confidence_N - 0.5) * 2 * bins).long().clamp(max=bins - 1)
    gap_K = torch.zeros(bins, dtype=torch.float64, device=p_N.device).index_add(0, bin_N, right_N - confidence_N)
    return gap_K.abs().sum() / len(p_N)
