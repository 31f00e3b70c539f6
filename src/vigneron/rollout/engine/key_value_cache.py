"""The engine's cache of keys and values: its size, its tensors, and its memory, which is given back between calls.

Where the decode kernel runs, the rows of a group share one copy of their prompt. Elsewhere each row has its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from vigneron.policy.cuda_graphs import round_up
from vigneron.rollout.engine.cached_attention import Cache, kernel_tiles
from vigneron.rollout.engine.cuda_memory import ReleasableMemory, can_release, cut

DEFAULT_BYTES = {"cuda": 6 * 2**30, "mps": 2**30, "cpu": 2**30}
"""Bytes of the cache where no number is given, unless a single row needs more; on a GPU at most an eighth of it."""
LARGE = 2**28
"""A cache of more bytes than this is given back between calls."""
SLOT_STEP = 64
"""Slots of rows and prompts are multiples of this where sizes are rounded."""
GROUPS = 1.5
"""Groups that may be unfinished at a time, as a multiple of those that fill all rows: the last rows of a group share
its prompt with none."""


def default_cache_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return min(DEFAULT_BYTES["cuda"], torch.cuda.get_device_properties(device).total_memory // 8)
    return DEFAULT_BYTES[device.type]


@dataclass(frozen=True)
class Room:
    """How much a cache holds: `rows` of `row_slots` tokens, and `prompts` of `prompt_slots` tokens that rows share, or
    none."""

    rows: int = 0
    row_slots: int = 0
    prompts: int = 0
    prompt_slots: int = 0
    new_tokens: int = 0

    def tokens(self) -> int:
        return self.rows * self.row_slots + self.prompts * self.prompt_slots

    @property
    def widest_prompt(self) -> int:
        return self.prompt_slots if self.prompts else self.row_slots


class KeyValueCache:
    """The cache of a model. `limit` are the bytes that it may have."""

    def __init__(self, model: Any, dtype: torch.dtype, limit: int | None) -> None:
        self._model, self._device, self.dtype = model, model.device, dtype
        self._limit = default_cache_bytes(model.device) if limit is None else limit
        layers = model.attentions
        like = torch.empty(0, dtype=dtype, device=self._device)
        self._shares = model.own_attention and all(kernel_tiles(like, layer) is not None for layer in layers)
        self.token_bytes = dtype.itemsize * sum(at.heads * (at.key_size + at.value_size) for at in layers)
        self.room = Room()
        self._memory: ReleasableMemory | None = None
        self._rows: list[Cache] = []

    def room_for(self, groups: Sequence[tuple[int, int]], new_tokens: int, *, rounded: bool = False) -> Room:
        """The room for groups of (tokens of the prompt, samples), or for as many at a time as the limit allows.
        `rounded`: slots and prompts are rounded up, so that few sizes occur."""
        samples, widest = sum(size for _, size in groups), max(width for width, _ in groups)
        step = SLOT_STEP if rounded else 1
        if not self._shares:
            slots = round_up(widest + new_tokens, step)
            return Room(self._rows_at_once(samples, slots), slots, new_tokens=new_tokens)
        row_slots, prompt_slots, per_row = round_up(new_tokens, step), round_up(widest, step), len(groups) / samples
        rows = self._rows_at_once(samples, row_slots + per_row * prompt_slots)
        if rows < samples:
            rows = self._rows_at_once(samples, row_slots + GROUPS * per_row * prompt_slots)
        prompts = min(len(groups), int(GROUPS * per_row * rows) + 1)
        room = Room(rows, row_slots, prompts, prompt_slots, new_tokens)
        more = replace(room, prompts=round_up(prompts, 8)) if rounded and prompts > 16 else room
        return more if self.fits(more) else room

    def fits(self, room: Room) -> bool:
        return room.tokens() * self.token_bytes <= self._limit

    def _rows_at_once(self, samples: int, tokens: float) -> int:
        """At most as many as there are samples, of so many tokens each."""
        return min(samples, max(1, int(self._limit / (self.token_bytes * tokens))))

    def grown(self, room: Room) -> Room:
        """The present room if it is enough; else one that holds both, if the limit allows it."""
        have = (self.room.rows, self.room.row_slots, self.room.prompts, self.room.prompt_slots, self.room.new_tokens)
        need = (room.rows, room.row_slots, room.prompts, room.prompt_slots, room.new_tokens)
        if all(has >= needs for has, needs in zip(have, need, strict=True)):
            return self.room
        both = Room(*(max(pair) for pair in zip(have, need, strict=True)))
        return both if self.fits(both) or both.tokens() <= room.tokens() else room

    @property
    def spare_place(self) -> int:
        """Takes the writes of padding prompts."""
        return self.room.prompts or self.room.rows

    def allocate(self, room: Room) -> None:
        self._rows = []
        layers = self._model.attentions
        self._model.attach([(torch.empty(0), torch.empty(0))] * len(layers), [None] * len(layers))
        self._memory = None  # frees the old cache first
        self.room = Room()  # until there is one
        if not room.rows:
            return
        sizes = [(at.heads, size) for at in layers for size in (at.key_size, at.value_size)]
        # One place more than there are rows or prompts: the spare one.
        shapes = [(room.rows + (not room.prompts), heads, room.row_slots, size) for heads, size in sizes]
        if room.prompts:
            shapes += [(room.prompts + 1, heads, room.prompt_slots, size) for heads, size in sizes]
        tensors = self._tensors(shapes)
        pairs = list(zip(tensors[::2], tensors[1::2], strict=True))
        self._rows = pairs[: len(layers)]
        prompts: Sequence[Cache | None] = pairs[len(layers) :] or [None] * len(layers)
        self._model.attach(self._rows, prompts)
        self.room = room

    def _tensors(self, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
        size = sum(torch.Size(shape).numel() * self.dtype.itemsize for shape in shapes)
        if self._device.type == "cuda" and self._shares and size > LARGE and can_release():
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
