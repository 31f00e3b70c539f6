"""Answers that another prompt or another policy led to: how much they count, and how much help a prompt gives."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from vigneron.core.masked import LOG_RATIO_CAP, where_finite

# e to it is finite in float64.
LARGEST_EXPONENT = 700.0


def topr_weight(
    logps_N: Float[Tensor, " N"], behaviour_N: Float[Tensor, " N"], rewards_N: Float[Tensor, " N"]
) -> Float[Tensor, " N"]:
    """w = 1 where R ≥ 0, else min(1, π(y)/μ(y)), without gradient   (TOPR, Le Roux et al. 2025).

    Of whole texts, or of whatever log-probs are given; μ is the policy that wrote them.
    """
    ratio_N = (logps_N - behaviour_N).clamp(-LOG_RATIO_CAP, 0.0).exp().detach()
    return torch.where(rewards_N >= 0, 1.0, ratio_N)


def luffy(
    logprobs_BT: Float[Tensor, "B T"], advantages_BT: Float[Tensor, "B T"], *, gamma: float = 0.1
) -> Float[Tensor, "B T"]:
    """−A · f(π), f(π) = π/(π + γ)   (LUFFY, Yan et al. 2025, with its π_φ = 1), differentiated through f.

    ∇log π has the weight A · γπ/(π + γ)²: largest, A/4, at π = γ, and 0 for a token that is certain or impossible.
    """

    def loss(logprobs: Tensor, advantages: Tensor) -> Tensor:
        return -advantages * torch.sigmoid(logprobs - math.log(gamma))  # π/(π + γ)

    return where_finite(loss, logprobs_BT, advantages_BT)


def scaffold_share(place: int, size: int, progress: float, *, half_at: float = 0.2, steepness: float = 125.0) -> float:
    """λ = (G − 1 − i)/(G − 1) · 1/(1 + e^{a(x − x₀)})   (RuscaRL, Zhou et al. 2025): how much help an answer gets.

    i is its place among the G of its group, x the progress of training from 0 to 1, x₀ where half of the help is left.
    """
    exponent = min(steepness * (progress - half_at), LARGEST_EXPONENT)
    return (size - 1 - place) / (size - 1) / (1.0 + math.exp(exponent))
