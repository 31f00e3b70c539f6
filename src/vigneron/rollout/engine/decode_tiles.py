"""What the decode kernel reads, and how many slots at a time: as many as fit into a GPU's shared memory.

With three stages, the keys and values of two blocks are in shared memory while the next ones are loaded. These are the
sizes that Triton reports for the kernel, up to a few bytes.
"""

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

SMALLEST = 16
"""Rows of a matrix product in a kernel."""
SPARE = 512


class Tiles(NamedTuple):
    """`block` slots are read at a time. `sharing` query heads of a key head and `size` numbers of a head are padded."""

    sharing: int
    size: int
    block: int
    stages: int

    def shared_bytes(self, itemsize: int) -> int:
        blocks = {1: 1, 2: 2, 3: 4}[self.stages]
        numbers = self.sharing * self.size + blocks * self.block * self.size + self.sharing * self.block
        return numbers * itemsize + SPARE


PAGE = 64
"""Tokens of a page: a multiple of every block."""


class Slots(NamedTuple):
    """Where rows are: the slot of each one's new token, and in a paged cache the length of each one's prompt and the
    pages of prompt and completion, which begins on a page of its own."""

    slot_R: Tensor
    start_R: Tensor | None = None
    pages_RN: Tensor | None = None


CHOICES = ((64, 3), (32, 3), (16, 3), (16, 2), (16, 1))
"""Blocks, which divide a page, and stages, the fastest first."""


@cache
def choose_tiles(sharing: int, size: int, itemsize: int, limit: int) -> Tiles | None:
    """The first choice that needs at most `limit` bytes of shared memory; None if none does."""
    heads, numbers = (max(SMALLEST, 1 << (number - 1).bit_length()) for number in (sharing, size))
    every = (Tiles(heads, numbers, block, stages) for block, stages in CHOICES)
    return next((tiles for tiles in every if tiles.shared_bytes(itemsize) <= limit), None)


@cache
def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that a kernel can have; torch does not name them on every kind of GPU. For Triton's
    interpreter, which has no limit, those of an H200."""
    if device.type != "cuda":
        return 232_448
    properties: Any = torch.cuda.get_device_properties(device)
    return int(getattr(properties, "shared_memory_per_block_optin", 2**16))
