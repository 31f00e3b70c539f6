"""Trained weights on their way to another process: parts of whole tensors, each one run of bytes, and a checksum.

Matrices that are sampled with in bfloat16 travel so, which halves the bytes and changes no sample.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from vigneron.policy.model import Policy

# A part is at least so large, but for the last: one is copied out while the one before it travels.
PART_BYTES = 32 * 2**20
ALIGNED = 16
# An odd number whose multiples have no pattern: 2^64 divided by the golden ratio, as a signed number.
MULTIPLIER = 0x9E3779B97F4A7C15 - 2**64


@dataclass(frozen=True)
class Entry:
    """A tensor, and where its bytes lie in its part."""

    name: str
    tensor: Tensor
    dtype: torch.dtype
    offset: int

    @property
    def size(self) -> int:
        return self.tensor.numel() * self.dtype.itemsize

    def within(self, flat: Tensor) -> Tensor:
        return flat[self.offset : self.offset + self.size].view(self.dtype).view(self.tensor.shape)


class Parcel:
    """Named tensors of a policy, in parts. Two policies of the same kind have the same parts."""

    def __init__(self, policy: Policy, *, frozen: bool = False) -> None:
        """What is trained; or what is not, by which two bases are compared."""
        narrow = _sampled_in_bfloat16(policy)
        named = sorted((n, p.detach()) for n, p in policy.model.named_parameters() if p.requires_grad is not frozen)
        self.parts: list[list[Entry]] = []
        self.device = policy.device
        end = PART_BYTES
        for name, tensor in named:
            if end >= PART_BYTES:
                self.parts.append([])
                end = 0
            entry = Entry(name, tensor, torch.bfloat16 if tensor.data_ptr() in narrow else tensor.dtype, end)
            self.parts[-1].append(entry)
            end += math.ceil(entry.size / ALIGNED) * ALIGNED

    @property
    def entries(self) -> list[Entry]:
        return [entry for part in self.parts for entry in part]

    def bytes_of(self, part: int) -> int:
        last = self.parts[part][-1]
        return math.ceil((last.offset + last.size) / ALIGNED) * ALIGNED

    @property
    def bytes(self) -> int:
        return sum(self.bytes_of(part) for part in range(len(self.parts)))

    @torch.no_grad()
    def packed(self, part: int) -> Tensor:
        """The tensors as they are now, on their device."""
        flat = torch.zeros(self.bytes_of(part), dtype=torch.uint8, device=self.device)
        entries = self.parts[part]
        torch._foreach_copy_([entry.within(flat) for entry in entries], [entry.tensor for entry in entries])
        return flat

    @torch.no_grad()
    def unpack(self, part: int, flat: Tensor) -> None:
        """Into the same addresses: whoever holds them sees the new weights."""
        if len(flat) != self.bytes_of(part):
            raise ValueError(f"part {part} has {len(flat)} bytes, not {self.bytes_of(part)}")
        entries = self.parts[part]
        torch._foreach_copy_([entry.tensor for entry in entries], [entry.within(flat) for entry in entries])

    @torch.no_grad()
    def copy_from(self, tensors: Sequence[Tensor]) -> None:
        """Those of another of the same kind, in the order of its entries."""
        torch._foreach_copy_([entry.tensor for entry in self.entries], list(tensors))

    def checksum(self, prints: Sequence[Tensor]) -> str:
        """Of all parts' prints, with every name, shape and dtype."""
        digest = hashlib.sha256()
        for entry in self.entries:
            digest.update(f"{entry.name} {tuple(entry.tensor.shape)} {entry.dtype}\n".encode())
        digest.update(repr(torch.stack(list(prints)).tolist() if prints else []).encode())
        return digest.hexdigest()

    def checksum_now(self) -> str:
        return self.checksum([fingerprint(self.packed(part)) for part in range(len(self.parts))])


def fingerprint(flat: Tensor) -> Tensor:
    """Σᵢ mᵢ·wᵢ mod 2⁶⁴ over the 64-bit words of some bytes, mᵢ odd: on the device, in the order it likes.

    One word that differs changes it always; several do but for one time in 2⁶⁴. It guards against accidents alone.
    """
    words = flat.view(torch.int64)
    multipliers = torch.arange(1, len(words) + 1, device=flat.device) * MULTIPLIER | 1
    return (words * multipliers).sum()


def _sampled_in_bfloat16(policy: Policy) -> set[int]:
    """Addresses of what the engine, and autocast, use in bfloat16 alone. Adapters are merged in float32 before."""
    if policy.compute_dtype != torch.bfloat16 or hasattr(policy.model, "get_base_model"):
        return set()
    matrices: set[int] = set()
    others: set[int] = set()  # a tied head is an embedding too
    for module in policy.model.modules():
        own: Any = {p.data_ptr() for p in module.parameters(recurse=False)}
        (matrices if isinstance(module, nn.Linear | Conv1D) else others).update(own)
    return matrices - others
