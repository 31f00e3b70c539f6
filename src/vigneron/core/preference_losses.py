"""Losses of preferences: pairs of texts, or texts that are good or bad. A value per pair or text, to be minimised.

Log-probs are summed over a text's tokens unless the function says otherwise. `core.losses` has the same names.
"""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.nn.functional import logsigmoid

from vigneron.core.masked import where_finite


def bradley_terry(
    chosen_N: Float[Tensor, " N"], rejected_N: Float[Tensor, " N"], preferred_N: Float[Tensor, " N"] | None = None
) -> Float[Tensor, " N"]:
    """−hp · log σ(R(text_w) − R(text_l)) − (1 − hp) · log σ(R(text_l) − R(text_w))   (eq. 5; eq. 6 with hp = 1).

    `preferred` is hp, the probability that the chosen text is the better one: a soft label. 1 without it.
    """
    if preferred_N is not None:
        return preference_bce(chosen_N - rejected_N, preferred_N)
    return where_finite(lambda chosen, rejected: -logsigmoid(chosen - rejected), chosen_N, rejected_N)


def preference_bce(logit_N: Float[Tensor, " N"], first_preferred_N: Shaped[Tensor, " N"]) -> Float[Tensor, " N"]:
    """−hp · log p − (1 − hp) · log(1 − p) with p = σ(logit), the preference model's probability of the first text (§3).

    `first_preferred` is hp: 1 if people preferred the first text, 0 if the second, the share of votes if they differ.
    """

    def loss(logit: Tensor, preferred: Tensor) -> Tensor:
        return -preferred * logsigmoid(logit) - (1 - preferred) * logsigmoid(-logit)

    return where_finite(loss, logit_N, first_preferred_N.to(logit_N.dtype))


def dpo(
    chosen_N: Float[Tensor, " N"],
    rejected_N: Float[Tensor, " N"],
    ref_chosen_N: Float[Tensor, " N"] | None = None,
    ref_rejected_N: Float[Tensor, " N"] | None = None,
    *,
    beta: float = 0.1,
) -> Float[Tensor, " N"]:
    """−log σ{β log(π₁(text_w)/π₀(text_w)) − β log(π₁(text_l)/π₀(text_l))}   (§4.9), of summed log-probs.

    Without a reference it is §4.9's first form, −log σ(log π₁(text_w) − log π₁(text_l)), also scaled by β, which is 1
    in the paper.
    """
    if (ref_chosen_N is None) != (ref_rejected_N is None):
        raise ValueError("give the reference's log-probs of both texts, or of neither")
    if ref_chosen_N is not None and ref_rejected_N is not None:
        chosen_N, rejected_N = chosen_N - ref_chosen_N, rejected_N - ref_rejected_N
    return bradley_terry(beta * chosen_N, beta * rejected_N)


def ipo(
    chosen_N: Float[Tensor, " N"],
    rejected_N: Float[Tensor, " N"],
    ref_chosen_N: Float[Tensor, " N"],
    ref_rejected_N: Float[Tensor, " N"],
    *,
    beta: float = 0.1,
) -> Float[Tensor, " N"]:
    """(Δ − 1/(2β))² with Δ = log(π/π_ref)(text_w) − log(π/π_ref)(text_l)   (IPO, Azar et al. 2023).

    Of whatever log-probs are given: IPO's authors and TRL pass means over tokens.
    """

    def loss(chosen: Tensor, rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor) -> Tensor:
        return (chosen - ref_chosen - (rejected - ref_rejected) - 1 / (2 * beta)) ** 2

    return where_finite(loss, chosen_N, rejected_N, ref_chosen_N, ref_rejected_N)


def simpo(
    chosen_N: Float[Tensor, " N"],
    rejected_N: Float[Tensor, " N"],
    chosen_length_N: Shaped[Tensor, " N"],
    rejected_length_N: Shaped[Tensor, " N"],
    *,
    beta: float = 2.0,
    gamma: float = 1.0,
) -> Float[Tensor, " N"]:
    """−log σ(β · (mean log π(text_w) − mean log π(text_l)) − γ)   (SimPO, Meng et al. 2024), of summed log-probs.

    No reference. A text without a token counts as one of length 1.
    """
    lengths = [length_N.clamp(min=1) for length_N in (chosen_length_N, rejected_length_N)]
    return bradley_terry(beta * chosen_N / lengths[0] - gamma, beta * rejected_N / lengths[1])


def orpo(chosen_N: Float[Tensor, " N"], rejected_N: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    """−log σ(log odds(text_w) − log odds(text_l)), odds = p / (1 − p)   (ORPO, Hong et al. 2024).

    Of mean log-probs: log p is a text's mean over its tokens. No reference. The NLL is the caller's.
    """

    def log_odds(mean: Tensor) -> Tensor:
        mean = mean.clamp(max=-1e-6)  # p = 1 has infinite odds
        return mean - torch.log(-torch.expm1(mean))

    return where_finite(lambda won, lost: -logsigmoid(log_odds(won) - log_odds(lost)), chosen_N, rejected_N)


def kto(
    logps_N: Float[Tensor, " N"],
    reference_N: Float[Tensor, " N"],
    desirable_N: Shaped[Tensor, " N"],
    baseline_N: Float[Tensor, " N"],
    *,
    beta: float = 0.1,
) -> Float[Tensor, " N"]:
    """1 − σ(β (ρ − z₀)) for a desirable text, 1 − σ(β (z₀ − ρ)) for another, ρ = log π/π_ref   (KTO).

    Ethayarajh et al. 2024. z₀ is the baseline: an estimate of KL(π ‖ π_ref), at least 0.
    """

    def loss(logps: Tensor, reference: Tensor, desirable: Tensor, baseline: Tensor) -> Tensor:
        sign = 2 * desirable - 1
        return 1 - torch.sigmoid(sign * beta * (logps - reference - baseline))

    return where_finite(loss, logps_N, reference_N, desirable_N.to(logps_N.dtype), baseline_N)
