"""Likelihood, cross-entropy and importance sampling (`rlmt-grape` §8), of probabilities given as logs.

A distribution is its log-probs over the last dimension, and −∞ is a probability of 0. Entropy (§8.2) is
`draws.entropy`, KL(p ‖ q) (§8.4) is `kl.exact(p, q)`, and the reverse KL `kl.exact(q, p)`.
"""

import torch
from jaxtyping import Float
from torch import Tensor


def likelihood(logprobs_N: Float[Tensor, " N"]) -> Float[Tensor, ""]:
    """ℒ(q|x) = P(x|q) = ∏ᵢ q(xᵢ), of independent observations' log-probs under q   (§8.1)."""
    return logprobs_N.sum().exp()


def negative_log_likelihood(logprobs_N: Float[Tensor, " N"]) -> Float[Tensor, ""]:
    """NLL(q|x) = −log ℒ(q|x) = −Σᵢ log q(xᵢ)   (§8.1; eq. 1, whose observations are a text's tokens)."""
    return -logprobs_N.sum()


def cross_entropy(p_NV: Float[Tensor, "*N V"], q_NV: Float[Tensor, "*N V"]) -> Float[Tensor, "*N"]:
    """−Σₓ p(x) log q(x): the expected NLL of q where p is true   (§8.3). Entropy is cross_entropy(p, p).

    Where p is 0 the term is 0; where only q is 0 it is ∞.
    """
    return -(p_NV.exp() * torch.where(p_NV.isneginf(), 0.0, q_NV)).sum(-1)


def importance_estimate(
    values_N: Float[Tensor, " N"], p_N: Float[Tensor, " N"], q_N: Float[Tensor, " N"]
) -> Float[Tensor, ""]:
    """(1/N) Σᵢ P(xᵢ)/Q(xᵢ) · xᵢ: the mean under P of values drawn from Q   (eq. 18).

    `p` and `q` are the log-probs of the drawn values. Unbiased if Q covers the support of P.
    """
    return ((p_N - q_N).exp() * values_N).mean()


def variance_of_mean(
    variances_J: Float[Tensor, " J"], weights_J: Float[Tensor, " J"] | None = None
) -> Float[Tensor, ""]:
    """Var(Σⱼ wⱼ τⱼ / Σⱼ wⱼ) = Σⱼ wⱼ² σⱼ² / (Σⱼ wⱼ)² of independent τⱼ, σ² being their variances   (Lemma 8.1).

    Without weights it is that of the plain mean, (1/ρ²) Σ σ². With the lemma's weights φ̄ⱼ = k / σⱼ² it is 1 / Σ (1/σ²),
    the minimum over all weights.
    """
    weights_J = torch.ones_like(variances_J) if weights_J is None else weights_J
    return (weights_J**2 * variances_J).sum() / weights_J.sum() ** 2
