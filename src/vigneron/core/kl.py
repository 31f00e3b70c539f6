"""KL divergences: estimators from sampled tokens, exact ones over the vocabulary, and the adaptive coefficient."""

import math

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


def divergence(
    p_logits_BTV: Float[Tensor, "*BT V"], q_logits_BTV: Float[Tensor, "*BT V"], beta: float
) -> Float[Tensor, "*BT"]:
    """GKD's generalised Jensen-Shannon divergence (Agarwal et al. 2024), divided by β (1 − β):

        D_β(p, q) = KL(p ‖ m) / (1 − β) + KL(q ‖ m) / β        m = β p + (1 − β) q

    With p the parent and q the child, β → 0 is the forward KL(p ‖ q) and β → 1 the reverse KL(q ‖ p), and so are its
    values at 0 and 1. Undivided, it vanishes at both ends: β would be a learning rate. Near p = q, D_β is the KL for
    every β. A token that neither has adds nothing; a position with a NaN is NaN and passes no gradient.
    """
    if beta in (0.0, 1.0):
        return exact(p_logits_BTV, q_logits_BTV) if beta == 0.0 else exact(q_logits_BTV, p_logits_BTV)
    nan_BT = (p_logits_BTV.isnan() | q_logits_BTV.isnan()).any(-1)
    p, q = (torch.where(nan_BT[..., None], 0.0, logits).log_softmax(-1) for logits in (p_logits_BTV, q_logits_BTV))
    no_p, no_q = p.isneginf(), q.isneginf()
    p_some, q_some = torch.where(no_p, 0.0, p), torch.where(no_q, 0.0, q)
    m_to_p, m_to_q = mixture_ratios(p_some - q_some, beta)
    m_to_p, m_to_q = torch.where(no_q, math.log(beta), m_to_p), torch.where(no_p, math.log1p(-beta), m_to_q)
    from_p, from_q = p.exp() * torch.where(no_p, 0.0, m_to_p), q.exp() * torch.where(no_q, 0.0, m_to_q)
    return torch.where(nan_BT, torch.nan, -from_p.sum(-1) / (1 - beta) - from_q.sum(-1) / beta)


def mixture_ratios(log_ratio: Float[Tensor, "*N"], beta: float) -> tuple[Float[Tensor, "*N"], Float[Tensor, "*N"]]:
    """log m/p and log m/q of m = β p + (1 − β) q, from log p/q; exact also where β is near 0 or 1."""
    zero, logit = torch.zeros_like(log_ratio), math.log(beta) - math.log1p(-beta)
    m_to_p = math.log(beta) + torch.logaddexp(zero, -logit - log_ratio)
    m_to_q = math.log1p(-beta) + torch.logaddexp(zero, logit + log_ratio)
    return m_to_p, m_to_q


def with_rest(logprobs_BTK: Float[Tensor, "*BT K"]) -> Float[Tensor, "*BT K1"]:
    """K tokens' log-probs, and that of all others together: a divergence of these is at most that of the whole."""
    rounding = 8 * torch.finfo(logprobs_BTK.dtype).eps  # of 1 − Σ p
    rest_BT = (1 - logprobs_BTK.exp().sum(-1)).clamp(min=rounding).log()
    return torch.cat([logprobs_BTK, rest_BT[..., None]], -1)


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
