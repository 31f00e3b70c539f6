"""The trust region's maths (eq. 10): minimise the surrogate subject to KL(π₀ ‖ π₁) ≤ δ.

Near π₀ the KL is ½ xᵀFx, where F is the Fisher matrix. The best small step is along F⁻¹g, found by conjugate gradient
from products F·x, with the length at which ½ xᵀFx = δ; a line search then shortens it until the exact KL is at most δ
(Schulman et al., 2015, appendix C).
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor


def conjugate_gradient(
    product: Callable[[Float[Tensor, " N"]], Float[Tensor, " N"]],
    target_N: Float[Tensor, " N"],
    *,
    iterations: int = 10,
    tolerance: float = 1e-10,
) -> Float[Tensor, " N"]:
    """x with F x ≈ target, for a symmetric positive definite F given by its products; stops early at `tolerance`."""
    solution_N = torch.zeros_like(target_N)
    residual_N = target_N.clone()
    direction_N = residual_N.clone()
    squared = residual_N @ residual_N
    for _ in range(iterations):
        if squared <= tolerance:
            break
        image_N = product(direction_N)
        length = squared / (direction_N @ image_N)
        solution_N = solution_N + length * direction_N
        residual_N = residual_N - length * image_N
        before, squared = squared, residual_N @ residual_N
        direction_N = residual_N + (squared / before) * direction_N
    return solution_N


def largest_step(curvature: float, delta: float) -> float:
    """s with ½ (s x)ᵀF(s x) = δ, where `curvature` is xᵀFx: the trust region's size along x. 0 without curvature."""
    return math.sqrt(2 * delta / curvature) if curvature > 0 and math.isfinite(curvature) else 0.0


def line_search(
    evaluate: Callable[[float], tuple[float, float]],
    *,
    loss_before: float,
    delta: float,
    shrink: float = 0.5,
    attempts: int = 10,
) -> float | None:
    """The first of 1, ½, ¼ … of the step at which the surrogate is lower than before and the KL at most δ.

    `evaluate(share)` returns the surrogate and the KL there. None: no share satisfies both, and the step is rejected.
    """
    for attempt in range(attempts):
        share = shrink**attempt
        loss, kl = evaluate(share)
        if loss < loss_before and kl <= delta:  # NaN is neither
            return share
    return None
