"""Advantages: how much better a sample is than its baseline.

A missing reward is NaN: it is left out of every baseline, and its sample's advantage is 0. Nothing here synchronizes
with the device.
"""

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

STD_OFFSET = 1e-4


def group_relative(
    rewards_B: Float[Tensor, " B"], group_B: Int[Tensor, " B"], *, scale: Literal["none", "std"] = "none"
) -> Float[Tensor, " B"]:
    """A = R − mean of the group's rewards   (eq. 13).

    scale "none" is eq. 13, as in Dr. GRPO; "std" is the original GRPO's A / (std + 1e-4), with unbiased std (n − 1), as
    in TRL. A sample whose group has no other reward gets 0, and equal rewards get exactly 0. Samples may be in any
    order, and group numbers are arbitrary.
    """
    number_B = _numbered(group_B)
    advantages_B, count_B = _centred(rewards_B, number_B)
    if scale == "std":
        variance_B = _group_sum(advantages_B**2, number_B) / (count_B - 1).clamp(min=1)
        advantages_B = advantages_B / (variance_B.sqrt() + STD_OFFSET)
    return advantages_B.to(rewards_B.dtype)


def origin_relative(
    rewards_B: Float[Tensor, " B"],
    group_B: Int[Tensor, " B"],
    origin_B: Int[Tensor, " B"],
    demonstrated_B: Bool[Tensor, " B"],
    *,
    scale: Literal["none", "std"] = "none",
) -> Float[Tensor, " B"]:
    """A = R − mean of the group's rewards of the same origin: answers are compared with their own kind.

    The only answer of its kind in a group gets 0. A demonstrated one, which always is, is compared with its whole
    group (eq. 13). Origins are numbered from 0; if all are equal, this is `group_relative`.
    """
    kinds_B = _numbered(group_B) * (origin_B.max() + 1) + origin_B
    whole_B = group_relative(rewards_B, group_B, scale=scale)
    return torch.where(demonstrated_B, whole_B, group_relative(rewards_B, kinds_B, scale=scale))


def optimal_value(rewards_PG: Float[Tensor, "P G"], *, beta: float = 0.5) -> Float[Tensor, " P"]:
    """V* = β log mean_i e^{rᵢ/β} over the reference's samples of each prompt   (A*-PO), missing rewards left out.

    A prompt without any reward has NaN.
    """
    present_PG = ~rewards_PG.isnan()
    scaled_PG = torch.where(present_PG, rewards_PG / beta, -torch.inf)
    value_P = beta * (scaled_PG.logsumexp(1) - present_PG.sum(1).to(rewards_PG.dtype).log())
    return torch.where(present_PG.any(1), value_P, torch.nan)


def leave_one_out(rewards_B: Float[Tensor, " B"], group_B: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
    """A = R − mean of the other rewards of the group   (RLOO, Ahmadian et al. 2024): n/(n − 1) times eq. 13's."""
    advantages_B, count_B = _centred(rewards_B, _numbered(group_B))
    return (advantages_B * count_B / (count_B - 1).clamp(min=1)).to(rewards_B.dtype)


def gae(
    rewards_BT: Float[Tensor, "B T"],
    values_BT: Float[Tensor, "B T"],
    mask_BT: Shaped[Tensor, "B T"],
    *,
    gamma: float = 1.0,
    lam: float = 1.0,
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    """Aₜ = Σₖ (γλ)ᵏ δₜ₊ₖ with δₜ = rₜ + γ V(sₜ₊₁) − V(sₜ), and the returns A + V   (Schulman et al., 2016; §4.7).

    `values[t]` is V before token t; after the last token it is 0. A reward for the whole text is on its last token, and
    with γ = λ = 1 Aₜ = R − V(sₜ), as in eq. 4. Masked-out positions between tokens (a user's turn) are skipped.
    """
    written_BT = mask_BT.bool()
    advantages_BT = torch.zeros_like(values_BT)
    next_value_B, next_advantage_B = torch.zeros_like(values_BT[:, 0]), torch.zeros_like(values_BT[:, 0])
    for t in reversed(range(values_BT.shape[1])):
        here_B = written_BT[:, t]
        value_B, reward_B = (torch.where(here_B, x[:, t], 0.0) for x in (values_BT, rewards_BT))
        advantage_B = reward_B + gamma * next_value_B - value_B + gamma * lam * next_advantage_B
        advantages_BT[:, t] = torch.where(here_B, advantage_B, 0.0)
        next_value_B = torch.where(here_B, value_B, next_value_B)
        next_advantage_B = torch.where(here_B, advantage_B, next_advantage_B)
    return advantages_BT, torch.where(written_BT, advantages_BT + values_BT, 0.0)


def on_last_token(rewards_B: Float[Tensor, " B"], mask_BT: Shaped[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """A reward for the whole text as per-token rewards: all of it on the last sampled token, 0 before."""
    written_BT = mask_BT.bool()
    after_BT = written_BT.flip(1).cumsum(1).flip(1)
    return torch.where(written_BT & (after_BT == 1), rewards_B[:, None], 0.0)


def explained_variance(
    values_BT: Float[Tensor, "B T"], returns_BT: Float[Tensor, "B T"], mask_BT: Shaped[Tensor, "B T"]
) -> float:
    """1 − Var(R − V) / Var(R) over all tokens: 1 for a perfect critic, 0 for a constant one.

    NaN if all returns are equal.
    """
    written_BT = mask_BT.bool() & returns_BT.isfinite()
    values, returns = (x[written_BT].cpu().double() for x in (values_BT, returns_BT))
    if len(returns) < 2 or not (spread := float(returns.var())):
        return float("nan")
    return 1.0 - float((returns - values).var()) / spread


def share_without_variance(rewards_B: Float[Tensor, " B"], group_B: Int[Tensor, " B"]) -> Float[Tensor, ""]:
    """The share of groups, among those with a reward, with equal rewards or only one: they give no gradient."""
    number_B = _numbered(group_B)
    equal_B, count_B = _without_variance(rewards_B, number_B)
    # Each sample with a reward counts 1/n of its group, so that all groups count equally.
    part_B = torch.where(rewards_B.isnan(), 0.0, 1.0 / count_B.clamp(min=1))
    return torch.where(equal_B, part_B, 0.0).sum() / part_B.sum()


def without_variance(rewards_B: Float[Tensor, " B"], group_B: Int[Tensor, " B"]) -> Bool[Tensor, " B"]:
    """1 on the samples of groups whose rewards are all equal, or fewer than two."""
    return _without_variance(rewards_B, _numbered(group_B))[0]


def group_sizes(rewards_B: Float[Tensor, " B"], group_B: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
    """For each sample, how many of its group have a reward."""
    return _group_sum((~rewards_B.isnan()).to(rewards_B.dtype), _numbered(group_B))


def _without_variance(
    rewards_B: Float[Tensor, " B"], number_B: Int[Tensor, " B"]
) -> tuple[Bool[Tensor, " B"], Float[Tensor, " B"]]:
    centred_B, count_B = _centred(rewards_B, number_B)
    return _group_sum(centred_B.abs(), number_B) == 0, count_B


def _centred(
    rewards_B: Float[Tensor, " B"], number_B: Int[Tensor, " B"]
) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
    """Each reward minus its group's mean (0 for a missing one), and the number of rewards in the group.

    In float64, so that a mean does not depend on the order of summation (not on Apple GPUs, which lack it). The group's
    lowest reward is subtracted first: a mean of equal numbers may differ from them in the last bit, that of zeros is 0.
    """
    present_B = ~rewards_B.isnan()
    precise_B = rewards_B if rewards_B.device.type == "mps" else rewards_B.double()
    candidates_B = torch.where(present_B, precise_B, torch.inf)
    lowest_B = torch.full_like(precise_B, torch.inf).scatter_reduce(0, number_B, candidates_B, "amin")[number_B]
    above_B = torch.where(present_B, precise_B - lowest_B, 0.0)
    count_B = _group_sum(present_B.to(precise_B.dtype), number_B)
    mean_B = _group_sum(above_B, number_B) / count_B.clamp(min=1)
    return torch.where(present_B, above_B - mean_B, 0.0), count_B


def _group_sum(values_B: Float[Tensor, " B"], number_B: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
    """For each sample, the sum over its group."""
    return torch.zeros_like(values_B).index_add(0, number_B, values_B)[number_B]


def _numbered(group_B: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
    """Groups numbered from 0 without gaps. (`torch.unique` would synchronize with the device.)"""
    sorted_B, order_B = group_B.sort()
    number_B = (sorted_B != sorted_B.roll(1)).long()
    number_B[:1] = 0
    return torch.empty_like(order_B).scatter(0, order_B, number_B.cumsum(0))
