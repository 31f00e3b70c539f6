"""Why confidences weigh scores (`rlmt-grape` §6.1.1, Lemma 8.1), as variances of independent scores.

With φᵢ inversely proportional to a score's variance, the mean that φ weighs has the smallest variance of all. With a
rubric's weights ω beside φ that no longer holds, which the paper warns of.
"""

from jaxtyping import Float
from torch import Tensor


def mean_variance(variances_J: Float[Tensor, " J"]) -> Float[Tensor, ""]:
    """Var((1/ρ) Σ τᵢ) = (1/ρ²) Σ σᵢ²   (Lemma 8.1, left side)."""
    return variances_J.sum() / len(variances_J) ** 2


def confident_mean_variance(variances_J: Float[Tensor, " J"], confidences_J: Float[Tensor, " J"]) -> Float[Tensor, ""]:
    """Var(Σ τᵢ φᵢ / Σ φᵢ) = Σ σᵢ² φᵢ² / (Σ φᵢ)²   (Lemma 8.1, right side). With φ = k/σ² it is 1 / Σ (1/σᵢ²)."""
    return (variances_J * confidences_J**2).sum() / confidences_J.sum() ** 2


def rubric_variance(
    variances_J: Float[Tensor, " J"], weights_J: Float[Tensor, " J"], confidences_J: Float[Tensor, " J"]
) -> Float[Tensor, ""]:
    """Var(ρ Σ ωᵢ τᵢ φᵢ / Σ φᵢ), of eq. 15. With equal confidences it is that of the weighted sum, Σ ωᵢ² σᵢ²."""
    shares_J = len(weights_J) * weights_J * confidences_J / confidences_J.sum()
    return (variances_J * shares_J**2).sum()
