"""The engine's cache as transformers' `Cache`, for models whose attention is not a registered function: GPT-J, BLOOM,
MPT, Falcon. Their own attention runs over all slots, and a mask of [rows, slots] hides those after a row's own.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache

from vigneron.rollout.engine.cached_attention import Layer, write_prompts, write_tokens
from vigneron.rollout.engine.decode_tiles import Slots


class SlotCache(Cache):
    """A cache for one pass: prompts into `rows`, or one token per row at its slot. `discover` collects the layers."""

    def __init__(
        self,
        holders: list[Any],
        *,
        cache_rows: Tensor | None = None,
        cache_slots: Slots | None = None,
        discover: list[Layer] | None = None,
    ) -> None:
        self._holders, self._rows, self._discover = holders, cache_rows, discover
        self._slots = cache_slots.slot_R if cache_slots is not None else None
        self.layers: list[Any] = []
        width = holders[0].vigneron_cache[0].shape[2] if cache_slots is not None else 0
        self._before = max(0, width - 1)

    def mask(self) -> Tensor | None:
        """The slots that each row sees; None for prompts, which are causal."""
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
