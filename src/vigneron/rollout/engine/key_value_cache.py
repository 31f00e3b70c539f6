"""The engine's cache of keys and values: its size, its tensors, and its memory, which is given back between calls.

Where the decode kernel runs it is paged: a row has as many pages as it has tokens for, and the rows of a group share
those of their prompt. Elsewhere each row has slots for the longest prompt and completion.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vigneron.policy.cuda_graphs import round_up
from vigneron.rollout.engine.cached_attention import Cache, kernel_tiles
from vigneron.rollout.engine.cuda_memory import ReleasableMemory, can_release, cut
from vigneron.rollout.engine.decode_tiles import PAGE

DEFAULT_BYTES = {"cuda": 6 * 2**30, "mps": 2**30, "cpu": 2**30}
"""Bytes of the cache where no number is given, unless a single row needs more; on a GPU at most an eighth of it."""
LARGE = 2**28
"""A cache of more bytes than this is given back between calls."""
EXPECTED_SHARE = 0.25
"""The length of a completion, as a share of the longest, that is expected before any has ended."""


def default_cache_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return min(DEFAULT_BYTES["cuda"], torch.cuda.get_device_properties(device).total_memory // 8)
    return DEFAULT_BYTES[device.type]


def pages_for(tokens: int) -> int:
    return -(-tokens // PAGE)


@dataclass(frozen=True)
class Room:
    """How much a cache holds: `rows` of `row_slots` tokens; or, if it is paged, `pages` for the prompts and completions
    of `rows`, at most `prompt_pages` for a prompt. A completion has at most `new_tokens`."""

    rows: int = 0
    row_slots: int = 0
    pages: int = 0
    prompt_pages: int = 0
    new_tokens: int = 0

    @property
    def tokens(self) -> int:
        return self.rows * self.row_slots + self.pages * PAGE

    @property
    def row_pages(self) -> int:
        """The most that a row has."""
        return self.prompt_pages + pages_for(self.new_tokens) if self.pages else 0

    @property
    def widest_prompt(self) -> int:
        return self.prompt_pages * PAGE if self.pages else self.row_slots

    @property
    def spare(self) -> int:
        """The page, or row, that takes what is written for padding and by rows without a sample."""
        return self.pages or self.rows


def paged_room(groups: Sequence[tuple[int, int]], new_tokens: int, most: int, *, whole: bool) -> Room:
    """The room for groups of (tokens of the prompt, samples) in a paged cache, or for as many samples at a time as
    `most` pages allow: `whole` if each has the pages of its longest completion from the start, else those of
    `EXPECTED_SHARE` of it."""
    samples, prompt = sum(size for _, size in groups), max(pages_for(width) for width, _ in groups)
    longest = pages_for(new_tokens)
    if (every := len(groups) * prompt + samples * longest) <= most:
        return Room(samples, pages=every, prompt_pages=prompt, new_tokens=new_tokens)
    pages = max(most, prompt + longest)
    each = longest if whole else max(1, pages_for(int(EXPECTED_SHARE * new_tokens)))
    rows = min(int(pages / (each + prompt * len(groups) / samples)), (pages - prompt) // (longest if whole else 1))
    return Room(max(1, min(samples, rows)), pages=pages, prompt_pages=prompt, new_tokens=new_tokens)


class KeyValueCache:
    """The cache of a model. `limit` are the bytes that it may have."""

    def __init__(self, model: Any, dtype: torch.dtype, limit: int | None) -> None:
        self._model, self._device, self.dtype = model, model.device, dtype
        self._limit = default_cache_bytes(model.device) if limit is None else limit
        layers = model.attentions
        like = torch.empty(0, dtype=dtype, device=self._device)
        self.paged = model.own_attention and all(kernel_tiles(like, layer) is not None for layer in layers)
        self.token_bytes = dtype.itemsize * sum(at.heads * (at.key_size + at.value_size) for at in layers)
        self.room = Room()
        self._memory: ReleasableMemory | None = None
        self._rows: list[Cache] = []

    def room_for(
        self, groups: Sequence[tuple[int, int]], new_tokens: int, *, rounded: bool = False, whole: bool = False
    ) -> Room:
        """The room for groups of (tokens of the prompt, samples), or for as many at a time as the limit allows.
        `rounded`: slots are rounded up, so that few sizes occur. `whole`: see `paged_room`."""
        if self.paged:
            most = int(self._limit / (self.token_bytes * PAGE))
            return paged_room(groups, new_tokens, most, whole=whole)
        samples, widest = sum(size for _, size in groups), max(width for width, _ in groups)
        slots = round_up(widest + new_tokens, PAGE if rounded else 1)
        rows = min(samples, max(1, int(self._limit / (self.token_bytes * slots))))
        return Room(rows, slots, new_tokens=new_tokens)

    def fits(self, room: Room) -> bool:
        return room.tokens * self.token_bytes <= self._limit

    def grown(self, room: Room) -> Room:
        """The present room if it is enough; else one that holds both, if the limit allows it."""
        have = (self.room.rows, self.room.row_slots, self.room.pages, self.room.prompt_pages, self.room.new_tokens)
        need = (room.rows, room.row_slots, room.pages, room.prompt_pages, room.new_tokens)
        if all(has >= needs for has, needs in zip(have, need, strict=True)):
            return self.room
        both = Room(*(max(pair) for pair in zip(have, need, strict=True)))
        return both if self.fits(both) or both.tokens <= room.tokens else room

    def allocate(self, room: Room) -> None:
        layers = self._model.attentions
        self._rows = [(torch.empty(0), torch.empty(0))] * len(layers)
        self._model.attach(self._rows)
        self._memory = None  # frees the old cache first
        self.room = Room()  # until there is one
        if not room.rows:
            return
        count, slots = (room.pages, PAGE) if room.pages else (room.rows, room.row_slots)
        # One more: the spare one.
        tensors = self._tensors(
            [(count + 1, at.heads, slots, size) for at in layers for size in (at.key_size, at.value_size)]
        )
        self._rows = list(zip(tensors[::2], tensors[1::2], strict=True))
        self._model.attach(self._rows)
        self.room = room

    def _tensors(self, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
        size = sum(torch.Size(shape).numel() * self.dtype.itemsize for shape in shapes)
        if self._device.type == "cuda" and self.paged and size > LARGE and can_release():
            self._memory = ReleasableMemory(size + 256 * len(shapes), self._device)
            return cut(self._memory.bytes, shapes, self.dtype)
        return [torch.zeros(shape, dtype=self.dtype, device=self._device) for shape in shapes]

    def give_back(self) -> None:
        """Let others use the memory until `take_back`. What is in it is lost."""
        if self._memory is not None:
            self._memory.release()

    def take_back(self, *, zeroed: bool) -> None:
        """`zeroed` for passes that multiply slots which were never written by a weight of 0: they must not be NaN."""
        if self._memory is not None:
            self._memory.restore()
            if zeroed:
                self._memory.bytes.zero_()

    def copy_prompts(self, source: Tensor, target: Tensor, width: int) -> None:
        """Copy the first slots of rows to others."""
        for layer in self._rows:
            for part in layer:
                part[target, :, :width] = part[source, :, :width]

    def move(self, source: Tensor, target: Tensor) -> None:
        """Move the rows `source` to `target`."""
        for layer in self._rows:  # each move makes a copy
            for part in layer:
                part[target] = part[source]
