"""Rewards from the probabilities that the steps of a solution are right (process supervision, `rlmt-grape` §5).

Rows are padded: the first n of K probabilities count. What stands behind them has no effect.
"""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

Combine = Literal["min", "last", "product", "mean"]

# PSPO's constants, of the released code.
WEIBULL_SHAPE, WEIBULL_SCALE, WEIBULL_FACTOR = 1.5, 8.0, 10.735
KNEE, RISE, DRIFT, HIGH, LOW, NEUTRAL = 4, 0.5, 0.1, 0.88433, 0.2, 0.21159


def running(right_BK: Float[Tensor, "B K"], how: Combine) -> Float[Tensor, "B K"]:
    """C(p₁ … p_k) after each step k: the smallest probability so far, the last one, their product, or their mean."""
    if how == "min":
        return right_BK.cummin(1).values
    if how == "product":
        return right_BK.cumprod(1)
    if how == "mean":
        return right_BK.cumsum(1) / torch.arange(1, right_BK.shape[1] + 1, device=right_BK.device)
    return right_BK


def combined(right_BK: Float[Tensor, "B K"], steps_B: Int[Tensor, " B"], how: Combine) -> Float[Tensor, " B"]:
    """C(p₁ … p_n), in [0, 1]. Never the plain sum, which pays for more steps."""
    return running(right_BK, how).gather(1, steps_B[:, None] - 1)[:, 0]


def step_rewards(right_BK: Float[Tensor, "B K"], how: Combine) -> Float[Tensor, "B K"]:
    """r_k = C(p₁ … p_k) − C(p₁ … p_{k−1}), the first one C(p₁): what each step changes. They sum to `combined`."""
    running_BK = running(right_BK, how)
    return torch.cat([running_BK[:, :1], running_BK.diff(dim=1)], 1)


def geometric_mean(right_BK: Float[Tensor, "B K"], steps_B: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
    """s = (Π p)^{1/n}."""
    return combined(right_BK.log(), steps_B, "mean").exp()


def pspo(mean_B: Float[Tensor, " B"], steps_B: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
    """R = s · 10.735 (1.5/8) (n/8)^{0.5} e^{−(n/8)^{1.5}}   (PSPO, Li et al. 2024): s times a Weibull of the number of
    steps, which is at most 1, at n = 4."""
    k, scaled_B = WEIBULL_SHAPE, steps_B / WEIBULL_SCALE
    return mean_B * WEIBULL_FACTOR * k / WEIBULL_SCALE * scaled_B ** (k - 1) * torch.exp(-(scaled_B**k))


def pspo_released(mean_B: Float[Tensor, " B"], steps_B: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
    """R = s · f(s, n) as PSPO's released code has it, which grows without bound in n where s > 0.21159.

    f = s e^{0.5 n} for n ≤ 4; above, B (1 − w) + B e^{0.1 (n − 4) g} w with B = s e² and w = σ(10 (n − 4)); g = 1 for
    s > 0.88433, −1 for s < 0.2, else (s − 0.21159) / 0.88433. A single step gives 0.
    """
    beyond_B = (steps_B - KNEE).to(mean_B.dtype)
    early_B = mean_B * torch.exp(RISE * steps_B)
    base_B, late_B = mean_B * torch.tensor(RISE * KNEE).exp(), torch.sigmoid(10 * beyond_B)
    growth_B = torch.where(mean_B > HIGH, 1.0, (mean_B - NEUTRAL) / HIGH)
    growth_B = torch.where((mean_B > 0) & (mean_B < LOW), -1.0, growth_B)
    later_B = base_B * (1 - late_B) + late_B * base_B * torch.exp(DRIFT * beyond_B * growth_B)
    return torch.where(steps_B <= 1, 0.0, mean_B * torch.where(beyond_B <= 0, early_B, later_B))
