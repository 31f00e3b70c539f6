"""The engine's cache as transformers' `Cache`, for models whose attention is not a registered function: GPT-J, BLOOM,
MPT, Falcon. Their own attention runs over all slots, and a mask of [rows, slots] hides those after a row's own.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache

from vigneron.rollout.engine.cached_attention import Chunk, Layer, write_chunk, write_prompts, write_tokens
from vigneron.rollout.engine.decode_tiles import Slots


class SlotCache(Cache):
    """A cache for one pass: prompts into `rows`, one token per row at its slot, or a chunk. `discover` collects the
    layers. transformers' masks have one number of past tokens, so the past of a chunk's rows is aligned at its end."""

    def __init__(
        self,
        holders: list[Any],
        *,
        cache_rows: Tensor | None = None,
        cache_slots: Slots | None = None,
        cache_chunk: Chunk | None = None,
        discover: list[Layer] | None = None,
    ) -> None:
        self._holders, self._rows, self._discover = holders, cache_rows, discover
        self._slots = cache_slots.slot_R if cache_slots is not None else None
        self.layers: list[Any] = []
        self._chunk, self._before = cache_chunk, 0
        if cache_slots is not None:
            self._before = holders[0].vigneron_cache[0].shape[2] - 1
        if cache_chunk is not None:
            self._before = cache_chunk.past
            at_P = torch.arange(self._before, device=cache_chunk.first_N.device)
            self._past_NP = at_P - self._before + cache_chunk.first_N[:, None]  # slots; negative: none

    def mask(self) -> Tensor | None:
        """The slots that each row sees; None for prompts, which are causal."""
        if self._chunk is not None:
            return torch.nn.functional.pad(self._past_NP >= 0, (0, self._chunk.width), value=True).long()
        if self._slots is None:
            return None
        return (torch.arange(self._before + 1, device=self._slots.device) <= self._slots[:, None]).long()

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        if self._discover is not None:
            self._discover.append(Layer.of(nn.Module(), key_states, key_states, value_states))
            return key_states, value_states
        cache = self._holders[layer_idx].vigneron_cache
        key, value = (new.to(cache[0].dtype) for new in (key_states, value_states))
        if self._chunk is not None:
            write_chunk(cache, key, value, self._chunk)
            row_N1, slot_NP = self._chunk.row_N[:, None], self._past_NP.clamp(min=0)
            past = (part[row_N1, :, slot_NP].transpose(1, 2).to(key_states.dtype) for part in cache)
            keys, values = (torch.cat(pair, 2) for pair in zip(past, (key_states, value_states), strict=True))
            return keys, values
        if self._slots is None:
            write_prompts(cache, key, value, self._rows)
            return key_states, value_states
        write_tokens(cache, key[:, :, 0], value[:, :, 0], self._slots)
        keys, values = (part[: len(self._slots)].to(key_states.dtype) for part in cache)
        return keys, values

    # What transformers needs to make a mask: all slots before the last one are in the past.

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._before

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return self._before

    def get_mask_sizes(self, query_length: Any, layer_idx: int = 0) -> tuple[int, int]:
        length = query_length if isinstance(query_length, int) else query_length.shape[0]
        return self._before + length, 0

    @property
    def is_compileable(self) -> bool:
        return False

    @property
    def is_sliding(self) -> list[bool]:
        return [False]
