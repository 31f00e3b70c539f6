"""Losses: one tensor to be minimised, a value per token, and the one `aggregate` that reduces it.

Nothing is detached inside: the caller decides what carries gradient. Equation numbers are those of
`rlmt-grape`; Algorithm 1 and sections are those of `pgsrm`.
"""

from typing import Literal

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.nn.functional import logsigmoid

from vigneron.core.masked import LOG_RATIO_CAP, masked_sum, where_finite

AggregateMode = Literal["tokens", "samples", "sum_over_samples"]


def nll(logprobs_BT: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """−log π(aₜ|sₜ)   (eq. 1): the policy gradient of a demonstration whose advantage is 1."""
    return -logprobs_BT


def policy_gradient(logprobs_BT: Float[Tensor, "B T"], advantages_BT: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """−Aₜ · log π(aₜ|sₜ)   (eq. 3; Algorithm 1, line 11)."""
    return where_finite(lambda logprobs, advantages: -advantages * logprobs, logprobs_BT, advantages_BT)


def importance_ratio(
    logprobs_BT: Float[Tensor, "B T"], behaviour_BT: Float[Tensor, "B T"], advantages_BT: Float[Tensor, "B T"]
) -> Float[Tensor, "B T"]:
    """−rₜ · Aₜ with rₜ = π₁(aₜ|sₜ) / π₀(aₜ|sₜ)   (eq. 7). π₀ is the policy that sampled."""

    def loss(logprobs: Tensor, behaviour: Tensor, advantages: Tensor) -> Tensor:
        return -advantages * (logprobs - behaviour).clamp(-LOG_RATIO_CAP, LOG_RATIO_CAP).exp()

    return where_finite(loss, logprobs_BT, behaviour_BT, advantages_BT)


def clipped_ratio(
    logprobs_BT: Float[Tensor, "B T"],
    behaviour_BT: Float[Tensor, "B T"],
    advantages_BT: Float[Tensor, "B T"],
    mask_BT: Shaped[Tensor, "B T"],
    *,
    epsilon: float = 0.2,
    level: Literal["token", "sequence"] = "token",
) -> Float[Tensor, "B T"]:
    """−min(r·A, clip(r, 1−ε, 1+ε)·A) with r = π₁/π₀   (eq. 11, 14, 17; pgsrm §3.3).

    level "token": rₜ is the ratio of token t. level "sequence": r is the ratio of the whole text's
    probabilities, the same for all its tokens, and each token carries an equal share of the sample's loss, so
    that a row's masked sum is the sample's loss. π₀ is the policy that sampled.
    """

    def loss(log_ratio: Tensor, advantages: Tensor) -> Tensor:
        ratio = log_ratio.clamp(-LOG_RATIO_CAP, LOG_RATIO_CAP).exp()
        return -torch.minimum(ratio * advantages, ratio.clamp(1 - epsilon, 1 + epsilon) * advantages)

    log_ratio_BT = where_finite(torch.sub, logprobs_BT, behaviour_BT)
    if level == "token":
        return where_finite(loss, log_ratio_BT, advantages_BT)
    mask_BT = mask_BT.bool()
    tokens_B = mask_BT.sum(1).clamp(min=1)
    log_ratio_B = masked_sum(log_ratio_BT, mask_BT)
    share_BT = loss(log_ratio_B[:, None], torch.where(mask_BT, advantages_BT, 0.0)) / tokens_B[:, None]
    return torch.where(mask_BT, share_BT, 0.0)


def clipped(
    logprobs_BT: Float[Tensor, "B T"],
    behaviour_BT: Float[Tensor, "B T"],
    advantages_BT: Float[Tensor, "B T"],
    mask_BT: Shaped[Tensor, "B T"],
    *,
    epsilon: float = 0.2,
    level: Literal["token", "sequence"] = "token",
) -> Float[Tensor, "B T"]:
    """1 where the ratio is clipped and passes no gradient, else 0: a metric of `clipped_ratio`."""

    def is_clipped(log_ratio: Tensor, advantages: Tensor) -> Tensor:
        ratio = log_ratio.exp()
        up, down = (ratio > 1 + epsilon) & (advantages > 0), (ratio < 1 - epsilon) & (advantages < 0)
        return (up | down).to(log_ratio.dtype)

    log_ratio_BT = where_finite(torch.sub, logprobs_BT, behaviour_BT)
    if level == "sequence":
        log_ratio_BT = masked_sum(log_ratio_BT, mask_BT.bool())[:, None].expand_as(log_ratio_BT)
    return where_finite(is_clipped, log_ratio_BT, advantages_BT).detach()


def bradley_terry(chosen_N: Float[Tensor, " N"], rejected_N: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    """−log σ(R(text_w) − R(text_l))   (eq. 6; eq. 5 with hp = 1)."""
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


def sppo(
    logps_N: Float[Tensor, " N"],
    previous_N: Float[Tensor, " N"],
    win_rate_N: Float[Tensor, " N"],
    *,
    eta: float = 1000.0,
) -> Float[Tensor, " N"]:
    """½ [log π(y)/π_t(y) − η (P̂(y ≻ π_t) − ½)]²   (SPPO, Wu et al. 2024; §5), of summed log-probs.

    π_t is the previous round's policy, P̂ the win rate against it. A missing win rate gives NaN, and no gradient.
    """

    def loss(logps: Tensor, previous: Tensor, win_rate: Tensor) -> Tensor:
        return 0.5 * (logps - previous - eta * (win_rate - 0.5)) ** 2

    return where_finite(loss, logps_N, previous_N, win_rate_N)


def squared_error(values: Float[Tensor, "*B"], returns: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    """(V − R)², the critic's loss   (Algorithm 1, line 12). A missing return gives NaN, and no gradient."""
    return where_finite(lambda values, returns: (values - returns) ** 2, values, returns)


def clipped_squared_error(
    values_BT: Float[Tensor, "B T"],
    before_BT: Float[Tensor, "B T"],
    returns_BT: Float[Tensor, "B T"],
    *,
    epsilon: float = 0.2,
) -> Float[Tensor, "B T"]:
    """max((V − R)², (clip(V, V₀ ± ε) − R)²), PPO's clipped value loss; V₀ is the value before the step's updates."""

    def loss(values: Tensor, before: Tensor, returns: Tensor) -> Tensor:
        near = before + (values - before).clamp(-epsilon, epsilon)
        return torch.maximum((values - returns) ** 2, (near - returns) ** 2)

    return where_finite(loss, values_BT, before_BT, returns_BT)


def aggregate_denominator(mask_BT: Shaped[Tensor, "B T"], mode: AggregateMode) -> int:
    """The denominator of `aggregate` for a whole batch: its tokens, or its samples with at least one token."""
    mask_BT = mask_BT.bool()
    return int(mask_BT.sum()) if mode == "tokens" else int(mask_BT.any(1).sum())


def aggregate(
    values_BT: Float[Tensor, "B T"],
    mask_BT: Shaped[Tensor, "B T"],
    *,
    mode: AggregateMode = "tokens",
    denominator: float | int | Tensor | None = None,
) -> Float[Tensor, ""]:
    """Reduce a value per token to the scalar that is minimised.

    tokens:            Σᵢ Σₜ xᵢₜ / Σᵢ nᵢ            (Algorithm 1's masked mean)
    samples:           (1/S) Σᵢ (1/nᵢ) Σₜ xᵢₜ
    sum_over_samples:  (1/S) Σᵢ Σₜ xᵢₜ             (the papers' sums)

    `denominator` is Σᵢ nᵢ or S of the whole batch over all microbatches and ranks: with it, the results of the parts
    add up to that of the batch. Without it, that of the given mask. An empty mask gives 0.
    """
    sums_B = masked_sum(values_BT, mask_BT)
    if mode == "samples":
        sums_B = sums_B / mask_BT.bool().sum(1).clamp(min=1)
    if denominator is None:
        denominator = aggregate_denominator(mask_BT, mode)
    return sums_B.sum() / denominator if denominator else sums_B.sum() * 0.0
