"""Stochastic rounding to bfloat16: up or down so that the mean is the exact value.

A weight of 1 in bfloat16 has its neighbours at 1 ± 2⁻⁷: a step of 1e-5 to the nearest of them never moves it. Rounded
up with probability (x − below) / (above − below), it moves by 1e-5 on average. The random bits are a function of (key,
position) alone: the global generator is not used, and every device draws the same.
"""

import zlib

import torch
from jaxtyping import BFloat16, Float32, Int
from torch import Tensor

from vigneron.core.draws import mix, shift_right

CHUNK = 2**24
"""Values that are worked on at once: the float32 temporaries are of this size, not of the parameter's."""


def rounding_key(seed: int, name: str, *numbers: int) -> int:
    """The key of a tensor's draws, from its name and the numbers of the update and of the addition."""
    key = seed
    for number in (zlib.crc32(name.encode()), *numbers):
        key = _mix_int(key) ^ number
    return _mix_int(key) >> 1  # fits into a signed integer


def rounding_bits(key: int, start: int, count: int, device: torch.device | str = "cpu") -> Int[Tensor, " N"]:
    """16 random bits for each of the positions start … start + count − 1."""
    return shift_right(mix(torch.arange(start, start + count, device=device) ^ key), 48)


def _mix_int(bits: int) -> int:
    """`draws.mix` of a Python integer: tensors of one number would take longer than the update."""
    mask = 2**64 - 1
    bits = (bits + 0x9E3779B97F4A7C15) & mask
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & mask
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & mask
    return bits ^ (bits >> 31)


def round_stochastically(values_N: Float32[Tensor, " N"], bits_N: Int[Tensor, " N"]) -> BFloat16[Tensor, " N"]:
    """bfloat16 is the upper half of float32. The bits are added to the lower half, and what carries over rounds away
    from 0: with probability (lower half) / 2¹⁶."""
    carried_N = (values_N.view(torch.int32) + bits_N.to(torch.int32)) & -(2**16)
    return torch.where(values_N.isfinite(), carried_N.view(torch.float32), values_N).to(torch.bfloat16)


def add_rounded_(total_N: BFloat16[Tensor, " N"], part_N: BFloat16[Tensor, " N"], key: int) -> None:
    """total ← total + part, stochastically rounded, in chunks."""
    for start in range(0, len(total_N), CHUNK):
        at = slice(start, start + CHUNK)
        exact_N = total_N[at].float() + part_N[at]
        total_N[at] = round_stochastically(exact_N, rounding_bits(key, start, len(exact_N), total_N.device))
