"""Losses: one tensor to be minimised, a value per token, and the one `aggregate` that reduces it.

Nothing is detached inside, where a docstring does not say "without gradient": the caller decides what carries
gradient. Equation numbers are those of `rlmt-grape`; Algorithm 1 and sections are those of `pgsrm`.
"""

from typing import Literal

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from vigneron.core.masked import LOG_RATIO_CAP, masked_sum, where_finite
from vigneron.core.off_policy import topr_weight
from vigneron.core.preference_losses import bradley_terry, dpo, ipo, kto, orpo, preference_bce, simpo

__all__ = [
    "AggregateMode",
    "ClipLevel",
    "a_star",
    "aggregate",
    "aggregate_denominator",
    "bradley_terry",
    "cispo",
    "clipped",
    "clipped_ratio",
    "clipped_squared_error",
    "dpo",
    "importance_ratio",
    "ipo",
    "kto",
    "nll",
    "oreo",
    "orpo",
    "policy_gradient",
    "preference_bce",
    "simpo",
    "sppo",
    "squared_error",
    "topr",
]

AggregateMode = Literal["tokens", "samples", "sum_over_samples"]
ClipLevel = Literal["token", "sequence", "geometric"]


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
    epsilon_high: float | None = None,
    delta: float | None = None,
    level: ClipLevel = "token",
) -> Float[Tensor, "B T"]:
    """−min(r·A, clip(r, 1−ε, 1+ε_high)·A) with r = π₁/π₀   (eq. 11, 14, 17; pgsrm §3.3). π₀ is the policy that sampled.

    `epsilon_high`: DAPO's clip-higher; ε without it. `delta`: dual clip, min(r, δ)·A, which bounds the loss of a bad
    token whose ratio is large. level "token": rₜ is the ratio of token t. "sequence": r is the
    ratio of the whole text's probabilities, and each token carries an equal share of the sample's loss, so that a row's
    masked sum is the sample's loss. "geometric": r is GSPO's (π₁/π₀)^{1/length}, and each token carries the sample's
    loss, which is a row's masked mean.
    """
    high = epsilon if epsilon_high is None else epsilon_high

    def loss(log_ratio: Tensor, advantages: Tensor) -> Tensor:
        ratio = log_ratio.clamp(-LOG_RATIO_CAP, LOG_RATIO_CAP).exp()
        bounded = ratio if delta is None else ratio.clamp(max=delta)
        return -torch.minimum(bounded * advantages, ratio.clamp(1 - epsilon, 1 + high) * advantages)

    log_ratio_BT = where_finite(torch.sub, logprobs_BT, behaviour_BT)
    if level == "token":
        return where_finite(loss, log_ratio_BT, advantages_BT)
    mask_BT = mask_BT.bool()
    tokens_B = mask_BT.sum(1).clamp(min=1)
    log_ratio_B = masked_sum(log_ratio_BT, mask_BT)
    advantages_BT = torch.where(mask_BT, advantages_BT, 0.0)
    if level == "geometric":
        return torch.where(mask_BT, loss((log_ratio_B / tokens_B)[:, None], advantages_BT), 0.0)
    share_BT = loss(log_ratio_B[:, None], advantages_BT) / tokens_B[:, None]
    return torch.where(mask_BT, share_BT, 0.0)


def clipped(
    logprobs_BT: Float[Tensor, "B T"],
    behaviour_BT: Float[Tensor, "B T"],
    advantages_BT: Float[Tensor, "B T"],
    mask_BT: Shaped[Tensor, "B T"],
    *,
    epsilon: float = 0.2,
    epsilon_high: float | None = None,
    delta: float | None = None,
    level: ClipLevel = "token",
) -> Float[Tensor, "B T"]:
    """1 where the ratio is clipped and passes no gradient, else 0: a metric of `clipped_ratio`."""
    high = epsilon if epsilon_high is None else epsilon_high

    def is_clipped(log_ratio: Tensor, advantages: Tensor) -> Tensor:
        ratio = log_ratio.exp()
        up, down = (ratio > 1 + high) & (advantages > 0), (ratio < 1 - epsilon) & (advantages < 0)
        if delta is not None:
            down = down | ((ratio > delta) & (advantages < 0))
        return (up | down).to(log_ratio.dtype)

    log_ratio_BT = where_finite(torch.sub, logprobs_BT, behaviour_BT)
    if level != "token":
        log_ratio_B = masked_sum(log_ratio_BT, mask_BT.bool())
        if level == "geometric":
            log_ratio_B = log_ratio_B / mask_BT.bool().sum(1).clamp(min=1)
        log_ratio_BT = log_ratio_B[:, None].expand_as(log_ratio_BT)
    return where_finite(is_clipped, log_ratio_BT, advantages_BT).detach()


def cispo(
    logprobs_BT: Float[Tensor, "B T"],
    behaviour_BT: Float[Tensor, "B T"],
    advantages_BT: Float[Tensor, "B T"],
    *,
    maximum: float = 5.0,
) -> Float[Tensor, "B T"]:
    """−min(r, maximum) · A · log π, with r = π/π₀ without gradient (CISPO; 5 is ScaleRL's): no token is dropped."""

    def loss(logprobs: Tensor, behaviour: Tensor, advantages: Tensor) -> Tensor:
        log_ratio = (logprobs - behaviour).clamp(-LOG_RATIO_CAP, LOG_RATIO_CAP)
        return -log_ratio.exp().clamp(max=maximum).detach() * advantages * logprobs

    return where_finite(loss, logprobs_BT, behaviour_BT, advantages_BT)


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


def topr(
    logps_N: Float[Tensor, " N"], behaviour_N: Float[Tensor, " N"], rewards_N: Float[Tensor, " N"]
) -> Float[Tensor, " N"]:
    """−w · R · log π(y), w = 1 where R ≥ 0, else min(1, π/μ) without gradient   (TOPR, Le Roux et al. 2025).

    Of whole texts; μ is the policy that wrote them. What is bad is pushed down only as far as the policy still says it.
    """

    def loss(logps: Tensor, behaviour: Tensor, rewards: Tensor) -> Tensor:
        return -topr_weight(logps, behaviour, rewards) * rewards * logps

    return where_finite(loss, logps_N, behaviour_N, rewards_N)


def a_star(
    logps_N: Float[Tensor, " N"],
    reference_N: Float[Tensor, " N"],
    value_N: Float[Tensor, " N"],
    rewards_N: Float[Tensor, " N"],
    *,
    beta: float = 1e-3,
) -> Float[Tensor, " N"]:
    """(β log π/π_ref + V* − r)², of summed log-probs   (A*-PO); V* is `advantages.optimal_value` of the prompt."""

    def loss(logps: Tensor, reference: Tensor, value: Tensor, rewards: Tensor) -> Tensor:
        return (beta * (logps - reference) + value - rewards) ** 2

    return where_finite(loss, logps_N, reference_N, value_N, rewards_N)


def oreo(
    logprobs_BT: Float[Tensor, "B T"],
    reference_BT: Float[Tensor, "B T"],
    values_BT: Float[Tensor, "B T"],
    rewards_B: Float[Tensor, " B"],
    mask_BT: Shaped[Tensor, "B T"],
    *,
    beta: float = 0.03,
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    """OREO's squared path-consistency errors of policy and value, with ρₜ = log π/π_ref and Vₜ before token t:

    policy   (Vₜ + β [ρₜ + Σ_{i>t} ρᵢ] − R)², gradient through ρₜ alone
    value    (Vₜ + β Σ_{i≥t} ρᵢ − R)²,        gradient through Vₜ alone
    """
    mask_BT = mask_BT.bool()
    rho_BT = torch.where(mask_BT, where_finite(torch.sub, logprobs_BT, reference_BT), 0.0)
    fixed_BT = rho_BT.detach()
    onward_BT = fixed_BT.flip(1).cumsum(1).flip(1)  # Σ_{i≥t}

    def error(values: Tensor, path: Tensor, rewards: Tensor) -> Tensor:
        return (values + beta * path - rewards) ** 2

    own_BT = rho_BT + (onward_BT - fixed_BT)
    policy_BT = where_finite(error, values_BT.detach(), own_BT, rewards_B[:, None])
    value_BT = where_finite(error, values_BT, onward_BT, rewards_B[:, None])
    return torch.where(mask_BT, policy_BT, 0.0), torch.where(mask_BT, value_BT, 0.0)


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
