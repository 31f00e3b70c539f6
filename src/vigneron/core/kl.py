"""KL divergences: estimators from sampled tokens, the exact KL over the vocabulary, and the adaptive coefficient."""

import torch
from jaxtyping import Float
from torch import Tensor

from vigneron.core.masked import LOG_RATIO_CAP, where_finite


def k1(logprobs_BT: Float[Tensor, "B T"], reference_BT: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """log π − log ρ: unbiased as a value. As a loss its expected gradient is zero (E[∇ log π] = 0)."""
    return where_finite(torch.sub, logprobs_BT, reference_BT)


def k2(logprobs_BT: Float[Tensor, "B T"], reference_BT: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """½ (log π − log ρ)²: biased as a value; its expected gradient is that of KL(π ‖ ρ)."""
    return where_finite(lambda p, q: 0.5 * (p - q) ** 2, logprobs_BT, reference_BT)


def k3(logprobs_BT: Float[Tensor, "B T"], reference_BT: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """ρ/π − 1 − log(ρ/π): unbiased and never negative as a value; as a loss its gradient is the forward KL's."""
    return where_finite(lambda p, q: (q - p).clamp(max=LOG_RATIO_CAP).exp() - 1 - (q - p), logprobs_BT, reference_BT)


def exact(p_logits_BTV: Float[Tensor, "*BT V"], q_logits_BTV: Float[Tensor, "*BT V"]) -> Float[Tensor, "*BT"]:
    """KL(p ‖ q) = Σᵥ p(v) (log p(v) − log q(v)) at every position   (eq. 8-10 is exact(π₀, π₁)).

    A token with p = 0 (logit −∞) adds nothing; one with only q = 0 makes the KL ∞. A position that is ∞ or NaN passes
    no gradient.
    """
    nan_BT = (p_logits_BTV.isnan() | q_logits_BTV.isnan()).any(-1)
    infinite_BT = (q_logits_BTV.isneginf() & ~p_logits_BTV.isneginf()).any(-1)
    bad_BT = nan_BT | infinite_BT
    p = torch.where(bad_BT[..., None], 0.0, p_logits_BTV).log_softmax(-1)
    q = torch.where(bad_BT[..., None], 0.0, q_logits_BTV).log_softmax(-1)
    excluded = p.isneginf()
    terms = p.exp() * (torch.where(excluded, 0.0, p) - torch.where(excluded, 0.0, q))
    return torch.where(bad_BT, torch.where(nan_BT, torch.nan, torch.inf), terms.sum(-1))


ESTIMATORS = {"k1": k1, "k2": k2, "k3": k3}


def adapted_coefficient(
    coefficient: float,
    measured: float,
    *,
    target: float,
    minimum: float,
    maximum: float,
    factor: float = 1.5,
    tolerance: float = 1.5,
) -> float:
    """The released PGSRM code's rule, bounded: × factor above tolerance · target, ÷ factor below target / tolerance.

    Without the bounds, and with k1 as the loss, the coefficient grows without limit: k1 cannot lower the KL.
    """
    if measured > tolerance * target:
        coefficient *= factor
    elif measured < target / tolerance:
        coefficient /= factor
    return min(max(coefficient, minimum), maximum)
