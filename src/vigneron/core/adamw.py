"""AdamW's equations (Loshchilov & Hutter 2019, Algorithm 2), in float32."""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor


class AdamWStep(NamedTuple):
    """The numbers of one step: w ← (1 − λη) w − (η / (1 − β₁ᵗ)) · m / (√v / √(1 − β₂ᵗ) + ε)."""

    kept: float
    """1 − λη: what weight decay leaves of a weight."""
    size: float
    """η / (1 − β₁ᵗ)"""
    root_correction: float
    """√(1 − β₂ᵗ)"""
    beta1: float
    beta2: float
    eps: float


def adamw_step(
    step: int, lr: float, weight_decay: float, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8
) -> AdamWStep:
    """The numbers of step 1, 2, …"""
    beta1, beta2 = betas
    return AdamWStep(1 - lr * weight_decay, lr / (1 - beta1**step), (1 - beta2**step) ** 0.5, beta1, beta2, eps)


def adamw_update(
    weight_N: Float[Tensor, " N"],
    grad_N: Float[Tensor, " N"],
    m_N: Float[Tensor, " N"],
    v_N: Float[Tensor, " N"],
    step: AdamWStep,
) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"], Float[Tensor, " N"]]:
    """The new weight, m and v."""
    m_N = step.beta1 * m_N + (1 - step.beta1) * grad_N
    v_N = step.beta2 * v_N + (1 - step.beta2) * grad_N.square()
    return step.kept * weight_N - step.size * m_N / (v_N.sqrt() / step.root_correction + step.eps), m_N, v_N
