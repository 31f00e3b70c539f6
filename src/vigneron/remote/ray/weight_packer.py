"""Pack trained weights into flat byte buffers to send to another process, with a checksum.

Matrices that the engine uses in bfloat16 are sent in bfloat16, which halves the bytes and changes no sample.
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

# Minimum size of a part, except the last: a part is copied from the device while the previous one is sent.
PART_BYTES = 32 * 2**20
ALIGNMENT = 16
# An odd number with well-mixed multiples: 2^64 divided by the golden ratio, as a signed integer.
MULTIPLIER = 0x9E3779B97F4A7C15 - 2**64


@dataclass(frozen=True)
class Entry:
    """A tensor and the offset of its bytes in its part."""

    name: str
    tensor: Tensor
    dtype: torch.dtype
    offset: int

    @property
    def size(self) -> int:
        return self.tensor.numel() * self.dtype.itemsize

    def within(self, flat: Tensor) -> Tensor:
        return flat[self.offset : self.offset + self.size].view(self.dtype).view(self.tensor.shape)


class WeightPacker:
    """The weights of a policy, grouped into parts. Policies of the same architecture have the same parts."""

    def __init__(self, policy: Policy, *, frozen: bool = False) -> None:
        """The trained weights; with `frozen` the others, whose checksums show whether two base models are equal."""
        in_bfloat16 = _sampled_in_bfloat16(policy)
        named = sorted((n, p.detach()) for n, p in policy.model.named_parameters() if p.requires_grad is not frozen)
        self.parts: list[list[Entry]] = []
        self.device = policy.device
        end = PART_BYTES
        for name, tensor in named:
            if end >= PART_BYTES:
                self.parts.append([])
                end = 0
            entry = Entry(name, tensor, torch.bfloat16 if tensor.data_ptr() in in_bfloat16 else tensor.dtype, end)
            self.parts[-1].append(entry)
            end += math.ceil(entry.size / ALIGNMENT) * ALIGNMENT

    @property
    def entries(self) -> list[Entry]:
        return [entry for part in self.parts for entry in part]

    def bytes_of(self, part: int) -> int:
        last = self.parts[part][-1]
        return math.ceil((last.offset + last.size) / ALIGNMENT) * ALIGNMENT

    @property
    def bytes(self) -> int:
        return sum(self.bytes_of(part) for part in range(len(self.parts)))

    @torch.no_grad()
    def packed(self, part: int) -> Tensor:
        """The current values of a part's tensors as bytes, on their device."""
        flat = torch.zeros(self.bytes_of(part), dtype=torch.uint8, device=self.device)
        entries = self.parts[part]
        torch._foreach_copy_([entry.within(flat) for entry in entries], [entry.tensor for entry in entries])
        return flat

    @torch.no_grad()
    def unpack(self, part: int, flat: Tensor) -> None:
        """Copy a part's bytes into the tensors in place."""
        if len(flat) != self.bytes_of(part):
            raise ValueError(f"part {part} has {len(flat)} bytes, not {self.bytes_of(part)}")
        entries = self.parts[part]
        torch._foreach_copy_([entry.tensor for entry in entries], [entry.within(flat) for entry in entries])

    @torch.no_grad()
    def copy_from(self, tensors: Sequence[Tensor]) -> None:
        """Copy tensors given in the order of `entries`."""
        torch._foreach_copy_([entry.tensor for entry in self.entries], list(tensors))

    def checksum(self, prints: Sequence[Tensor]) -> str:
        """A hash of all parts' fingerprints and of every name, shape and dtype."""
        digest = hashlib.sha256()
        for entry in self.entries:
            digest.update(f"{entry.name} {tuple(entry.tensor.shape)} {entry.dtype}\n".encode())
        digest.update(repr(torch.stack(list(prints)).tolist() if prints else []).encode())
        return digest.hexdigest()

    def checksum_now(self) -> str:
        return self.checksum([fingerprint(self.packed(part)) for part in range(len(self.parts))])


def fingerprint(flat: Tensor) -> Tensor:
    """Σᵢ mᵢ·wᵢ mod 2⁶⁴ over the 64-bit words of a buffer, mᵢ odd. Computed on the device; the order does not matter.

    A change of one word always changes it; changes of several words are missed once in 2⁶⁴. It detects accidental
    corruption, not tampering.
    """
    words = flat.view(torch.int64)
    multipliers = torch.arange(1, len(words) + 1, device=flat.device) * MULTIPLIER | 1
    return (words * multipliers).sum()


def _sampled_in_bfloat16(policy: Policy) -> set[int]:
    """Addresses of weights that the engine and autocast use only in bfloat16. None with adapters, merged in float32."""
    if policy.compute_dtype != torch.bfloat16 or hasattr(policy.model, "get_base_model"):
        return set()
    matrices: set[int] = set()
    others: set[int] = set()  # a tied head is an embedding too
    for module in policy.model.modules():
        own: Any = {p.data_ptr() for p in module.parameters(recurse=False)}
        (matrices if isinstance(module, nn.Linear | Conv1D) else others).update(own)
    return matrices - others
