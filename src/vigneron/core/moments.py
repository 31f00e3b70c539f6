"""AdamW's two moments in 8 bits: blocks of 256 values, each with its largest absolute value as the scale and one byte
per value, an index into a dynamic map (Dettmers et al. 2022, arXiv 2110.02861).

Two deviations: tensors below 4,096 values keep float32, as in bitsandbytes and torchao; and the second moment is never
rounded to 0, because the next step would be m/ε instead of m/√v (Li et al. 2023, arXiv 2309.01507, "zero point").
"""

from typing import Literal

BLOCK = 256
SMALLEST = 4096
"""Tensors with fewer values keep their moments in float32: norms, biases."""

Kind = Literal["adamw", "adamw_8bit"]


def is_8bit(kind: Kind, numel: int) -> bool:
    """Whether a parameter of so many values has its moments in 8 bits."""
    return kind == "adamw_8bit" and numel >= SMALLEST


def state_bytes(kind: Kind, numel: int) -> int:
    """Bytes of both moments of a parameter: 8 per value, or 2 and the scales of the blocks (2.03)."""
    return 2 * numel + 8 * -(-numel // BLOCK) if is_8bit(kind, numel) else 8 * numel
