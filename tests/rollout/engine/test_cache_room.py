"""The room of the key/value cache: what is allocated stays within the limit, with sizes rounded for CUDA graphs."""

from types import SimpleNamespace

import pytest
import torch

from vigneron.rollout.engine.cached_attention import Layer
from vigneron.rollout.engine.key_value_cache import KeyValueCache

GB = 2**30
LLAMA_8B = [Layer(None, heads=8, key_size=128, value_size=128, sharing=4)] * 32


def cache_of(limit: int, *, shares: bool = True) -> KeyValueCache:
    model = SimpleNamespace(device=torch.device("cpu"), attentions=LLAMA_8B, own_attention=False)
    cache = KeyValueCache(model, torch.bfloat16, limit)
    cache._shares = shares  # as with the decode kernel
    return cache


@pytest.mark.parametrize("shares", [True, False])
@pytest.mark.parametrize(("prompt", "new"), [(40, 16), (100, 80), (128, 256), (65, 65), (3000, 1000)])
def test_rounded_sizes_stay_within_the_limit(prompt: int, new: int, shares: bool) -> None:
    """256 groups of 8 of Llama-3.1-8B in 4 GB. 16 new tokens have 64 slots: four times what they need."""
    cache = cache_of(4 * GB, shares=shares)
    room = cache.room_for([(prompt, 8)] * 256, new, rounded=True)
    assert room.row_slots % 64 == 0 == room.prompt_slots % 64
    a_prompt = cache.token_bytes * room.prompt_slots  # one more than half of the groups need
    assert 0.9 * 4 * GB < room.tokens() * cache.token_bytes <= 4 * GB + a_prompt
    assert room.rows < 256 * 8


def test_prompts_are_rounded_up_where_they_fit() -> None:
    groups = [(1000, 1)] * 17
    large = cache_of(64 * GB)
    room = large.room_for(groups, 64, rounded=True)
    assert (room.rows, room.prompts) == (17, 24)
    just_enough = cache_of(17 * (1024 + 64) * large.token_bytes)
    assert just_enough.room_for(groups, 64, rounded=True).prompts == 17


def test_without_graphs_sizes_are_exact() -> None:
    room = cache_of(64 * GB).room_for([(100, 8)] * 20, 80)
    assert (room.rows, room.row_slots, room.prompts, room.prompt_slots) == (160, 80, 20, 100)
