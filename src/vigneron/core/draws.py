"""The sampling distribution, and keyed random draws.

A draw is a function of (seed, step, sample, position), so a sample does not depend on its neighbours in the batch, on
buckets or on ranks.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

DRAW_BLOCK = 256


@dataclass(frozen=True)
class Sampling:
    """The sampling distribution. `top_k` 0 and `top_p` 1 turn truncation off."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def drops_some(self, vocabulary: int) -> bool:
        return 0 < self.top_k < vocabulary or self.top_p < 1.0


def sampled_logprobs(
    logits_NV: Float[Tensor, "N V"], sampling: Sampling, keep_N: Int[Tensor, " N"] | None = None
) -> Float[Tensor, "N V"]:
    """Log-probs of the sampling distribution: temperature, then top-k, then top-p, renormalised.

    `keep_N` are tokens that were sampled: they stay in the support even if rounding or a later update has moved them
    out of top-k or top-p, so that their log-prob is finite. The rest of the support is that of the current policy.
    """
    logprobs_NV = (logits_NV / sampling.temperature).log_softmax(-1)
    vocabulary = logits_NV.shape[-1]
    if not sampling.drops_some(vocabulary):
        return logprobs_NV
    sorted_NV, order_NV = logprobs_NV.detach().sort(dim=-1, descending=True, stable=True)
    rank_V = torch.arange(vocabulary, device=logits_NV.device)
    kept_NV = torch.ones_like(sorted_NV, dtype=torch.bool)
    if 0 < sampling.top_k < vocabulary:
        kept_NV = kept_NV & (rank_V < sampling.top_k)
    if sampling.top_p < 1.0:
        # The nucleus is computed after top-k, and always contains the likeliest token.
        within_NV = torch.where(kept_NV, sorted_NV, -torch.inf).softmax(-1)
        before_NV = within_NV.cumsum(-1) - within_NV
        kept_NV = kept_NV & ((before_NV < sampling.top_p) | (rank_V == 0))
    support_NV = torch.zeros_like(kept_NV).scatter(-1, order_NV, kept_NV)
    if keep_N is not None:
        support_NV = support_NV.scatter(-1, keep_N[:, None], True)
    return torch.where(support_NV, logprobs_NV, -torch.inf).log_softmax(-1)


def entropy(logprobs_NV: Float[Tensor, "*N V"]) -> Float[Tensor, "*N"]:
    """−Σᵥ p log p, over the full distribution."""
    p_NV = logprobs_NV.exp()
    return -(p_NV * torch.where(logprobs_NV.isneginf(), 0.0, logprobs_NV)).sum(-1)


def chosen_logprobs(logprobs_NV: Float[Tensor, "N V"], ids_N: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
    return logprobs_NV.gather(-1, ids_N[:, None]).squeeze(-1)


def draw(probabilities_NV: Float[Tensor, "N V"], uniform_N: Float[Tensor, " N"]) -> Int[Tensor, " N"]:
    """Inverse-CDF sampling: the token whose part of [0, 1) contains the uniform number. Probability 0 is never drawn.

    Finds the block first, then the token in the block: only sums over blocks are accumulated, in the uniform number's
    precision, and the vocabulary is read once.
    """
    vocabulary = probabilities_NV.shape[-1]
    whole = vocabulary // DRAW_BLOCK * DRAW_BLOCK
    blocks_NKB = probabilities_NV[:, :whole].unflatten(-1, (whole // DRAW_BLOCK, DRAW_BLOCK))
    sums_NK = blocks_NKB.sum(-1, dtype=uniform_N.dtype)
    if whole < vocabulary:
        tail_N1 = probabilities_NV[:, whole:].sum(-1, keepdim=True, dtype=uniform_N.dtype)
        sums_NK = torch.cat([sums_NK, tail_N1], dim=-1)
    left_N, block_N = _first_above(sums_NK, uniform_N * sums_NK.sum(-1))
    inside_NB = block_N[:, None] * DRAW_BLOCK + torch.arange(DRAW_BLOCK, device=block_N.device)
    shares_NB = probabilities_NV.gather(-1, inside_NB.clamp(max=vocabulary - 1)).to(uniform_N.dtype)
    shares_NB = torch.where(inside_NB < vocabulary, shares_NB, 0.0)
    _, at_N = _first_above(shares_NB, left_N)
    return (block_N * DRAW_BLOCK + at_N).clamp(max=vocabulary - 1)  # with NaN, any token


def _first_above(
    weights_NK: Float[Tensor, "N K"], target_N: Float[Tensor, " N"]
) -> tuple[Float[Tensor, " N"], Int[Tensor, " N"]]:
    """The first index at which the running sum exceeds the target, and the rest of the target there.

    A target that rounding has lifted to the sum or above is moved just below it.
    """
    cumulative_NK = weights_NK.cumsum(-1)
    total_N = cumulative_NK[:, -1]
    target_N = torch.minimum(target_N, torch.nextafter(total_N, torch.zeros_like(total_N)))
    # NaN weights have no such index. Outside of the tensor it would be an error on the device, which ends the process.
    at_N1 = torch.searchsorted(cumulative_NK, target_N[:, None], right=True).clamp(max=weights_NK.shape[-1] - 1)
    before_N1 = cumulative_NK.gather(-1, at_N1) - weights_NK.gather(-1, at_N1)
    return (target_N - before_N1[:, 0]).clamp(min=0), at_N1[:, 0]


def keyed_uniform(seed: int, step: int, sample_N: Int[Tensor, " N"], position: int) -> Float[Tensor, " N"]:
    """Uniform numbers in [0, 1), each a function only of (seed, step, its sample, position)."""
    return uniform_at(draw_keys(seed, step, sample_N), torch.full_like(sample_N, position))


OTHER_DRAWS = 2**40
"""Positions from here on are of draws that are not of tokens: no token of any turn has one."""


def draw_keys(
    seed: int, step: int, sample_N: Int[Tensor, " N"], turn: int | Int[Tensor, " N"] = 0
) -> Int[Tensor, " N"]:
    """The key of each sample's draws in a step, and in a turn of its conversation; with a position in the turn it gives
    a draw (`uniform_at`). Bit 40 is left to the draws that are not of tokens (`OTHER_DRAWS`)."""
    return mix(mix(mix(torch.full_like(sample_N, seed)) ^ step) ^ sample_N) ^ (turn * 2**41)


def uniform_at(key_N: Int[Tensor, " N"], position_N: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
    bits_N = mix(key_N ^ position_N)
    if key_N.device.type == "mps":  # has no float64
        return shift_right(bits_N, 40).to(torch.float32) * 2.0**-24
    return shift_right(bits_N, 11).to(torch.float64) * 2.0**-53


def keyed_permutation(seed: int, epoch: int, size: int) -> list[int]:
    """A permutation of 0 … size − 1 that depends only on (seed, epoch)."""
    return keyed_order(seed, epoch, size).tolist()


def keyed_order(seed: int, epoch: int, size: int) -> Int[Tensor, " size"]:
    """`keyed_permutation` as a tensor, for many rows."""
    return keyed_uniform(seed, epoch, torch.arange(size), -1).argsort(stable=True)


def mix(bits: Tensor) -> Tensor:
    """One round of a splitmix64-like finaliser, in wrapping 64-bit integers."""
    bits = bits + _signed(0x9E3779B97F4A7C15)
    bits = (bits ^ shift_right(bits, 30)) * _signed(0xBF58476D1CE4E5B9)
    bits = (bits ^ shift_right(bits, 27)) * _signed(0x94D049BB133111EB)
    return bits ^ shift_right(bits, 31)


def _signed(unsigned: int) -> int:
    return unsigned - 2**64 if unsigned >= 2**63 else unsigned


def shift_right(bits: Tensor, by: int) -> Tensor:
    """Logical shift; torch's `>>` is arithmetic."""
    return (bits >> by) & ((1 << (64 - by)) - 1)
