"""AdamW's two moments in 8 bits: blocks of 256 values, each with its largest absolute value as the scale and one byte
per value, an index into a dynamic map (Dettmers et al. 2022, arXiv 2110.02861).

As in bitsandbytes and torchao, tensors below 4,096 values keep float32. One deviation from both: the second moment is
never rounded to 0, because the next step would be m/ε instead of m/√v (Li et al. 2023, arXiv 2309.01507, "zero point").

Neither library's optimizer is used: bitsandbytes rounds weights in bfloat16 to the nearest, which loses small steps;
torchao draws its rounding from torch's global generator, and its state is a tensor subclass, which safetensors cannot
hold. CONTRIBUTING.md has more.
"""

from collections.abc import Iterable
from functools import cache
from typing import Literal

import torch
from jaxtyping import Float32, UInt8
from torch import Tensor

from vigneron.core.rounding import CHUNK

BLOCK = 256
SMALLEST = 4096
"""Tensors with fewer values keep their moments in float32: norms, biases."""
DECADES = 7
IN_FLIGHT = 3
"""Offloaded parts of `CHUNK` values that are on the GPU at the same time: one arrives, one is updated, one leaves."""

Kind = Literal["adamw", "adamw_8bit"]


def is_8bit(kind: Kind, numel: int) -> bool:
    """Whether a parameter of so many values has its moments in 8 bits."""
    return kind == "adamw_8bit" and numel >= SMALLEST


def state_bytes(kind: Kind, numel: int) -> int:
    """Bytes of both moments of a parameter: 8 per value, or 2 and the scales of the blocks (2.03)."""
    return 2 * numel + 8 * -(-numel // BLOCK) if is_8bit(kind, numel) else 8 * numel


def device_state_bytes(kind: Kind, numels: Iterable[int], *, offload: bool) -> int:
    """Bytes of the moments of all trained parameters on the GPU: always, or at most during an update if `offload`."""
    total = sum(state_bytes(kind, numel) for numel in numels)
    return min(total, IN_FLIGHT * state_bytes(kind, CHUNK)) if offload else total


@cache
def dynamic_map(signed: bool) -> Float32[Tensor, "256"]:
    """The 256 values of a code, ascending, from −0.99 or 0 to 1.

    The decade [10ⁱ⁻⁷, 10ⁱ⁻⁶], i = 0 … 6, is cut into 2ⁱ bins of equal width (2ⁱ⁺¹ without a sign), whose centres are
    the values: large ones are exact to 0.4 %, small ones keep their order of magnitude.
    """
    positive = [
        10.0 ** (decade - 6) * (0.1 + 0.9 * (at + 0.5) / bins)
        for decade in range(DECADES)
        for bins in [2 ** (decade + (not signed))]
        for at in range(bins)
    ]
    negative = [-value for value in reversed(positive)] if signed else []
    return torch.tensor([*negative, 0.0, *positive, 1.0], dtype=torch.float32)


def quantize(values_N: Float32[Tensor, " N"], *, signed: bool) -> tuple[UInt8[Tensor, " N"], Float32[Tensor, " K"]]:
    """The nearest code of each value, and the scale of each block. Without a sign, the code of 0 is not used."""
    count = len(values_N)
    blocks_KB = torch.nn.functional.pad(values_N, (0, -count % BLOCK)).view(-1, BLOCK)
    scale_K = blocks_KB.abs().amax(1)
    scaled_KB = blocks_KB / torch.where(scale_K > 0, scale_K, 1.0)[:, None]
    values = dynamic_map(signed).to(values_N.device)
    codes_N = torch.bucketize(scaled_KB, (values[1:] + values[:-1]) / 2).view(-1)[:count]
    return (codes_N if signed else codes_N.clamp(min=1)).to(torch.uint8), scale_K


def dequantize(codes_N: UInt8[Tensor, " N"], scale_K: Float32[Tensor, " K"], *, signed: bool) -> Float32[Tensor, " N"]:
    values_N = dynamic_map(signed).to(codes_N.device)[codes_N.int()]
    return values_N * scale_K.repeat_interleave(BLOCK)[: len(codes_N)]
