"""The room of the key/value cache: what is allocated stays within the limit, with sizes rounded for CUDA graphs."""

from types import SimpleNamespace

import pytest
import torch

from vigneron.rollout.engine.cached_attention import Layer
from vigneron.rollout.engine.key_value_cache import KeyValueCache, paged_room

GB = 2**30
LLAMA_8B = [Layer(None, heads=8, key_size=128, value_size=128, sharing=4)] * 32


def cache_of(limit: int, *, paged: bool = True) -> KeyValueCache:
    model = SimpleNamespace(device=torch.device("cpu"), attentions=LLAMA_8B, own_attention=False)
    cache = KeyValueCache(model, torch.bfloat16, limit)
    cache.paged = paged  # as with the decode kernel
    return cache


@pytest.mark.parametrize("paged", [True, False])
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(("prompt", "new"), [(40, 16), (100, 80), (128, 256), (65, 65), (3000, 1000)])
def test_rounded_sizes_stay_within_the_limit(prompt: int, new: int, paged: bool, whole: bool) -> None:
    """256 groups of 8 of Llama-3.1-8B in 4 GB. 16 new tokens have a page of 64: four times what they need."""
    cache = cache_of(4 * GB, paged=paged)
    room = cache.room_for([(prompt, 8)] * 256, new, rounded=True, whole=whole)
    assert room.row_slots % 64 == 0
    assert 0.9 * 4 * GB < room.tokens * cache.token_bytes <= 4 * GB
    assert room.rows < 256 * 8
    if paged:
        page = 64 * cache.token_bytes
        per_row = -(-prompt // 64) / 8 + (-(-new // 64) if whole else -(-new // 256))  # a quarter of the longest
        assert room.rows == int(room.pages / per_row) == int(4 * GB // page / per_row)


def test_all_samples_have_their_longest_completion_where_that_fits() -> None:
    room = cache_of(64 * GB).room_for([(100, 8)] * 20, 80)
    assert (room.rows, room.pages, room.prompt_pages, room.row_pages) == (160, 20 * 2 + 160 * 2, 2, 4)


@pytest.mark.parametrize(("whole", "rows"), [(True, 1), (False, 2)])
def test_a_cache_that_is_too_small_holds_the_longest_sample(whole: bool, rows: int) -> None:
    """A completion has two pages, the second of which one that ends early does not need."""
    room = cache_of(1).room_for([(100, 8), (700, 8)], 80, whole=whole)
    assert (room.rows, room.pages) == (rows, 11 + 2)


def test_every_sample_that_begins_has_a_page() -> None:
    """2,000 prompts of a page with a sample of up to 3 tokens each, in 1,000 pages."""
    assert paged_room([(64, 1)] * 2000, 3, 1000, whole=False).rows == 500


def test_without_pages_and_graphs_sizes_are_exact() -> None:
    room = cache_of(64 * GB, paged=False).room_for([(100, 8)] * 20, 80)
    assert (room.rows, room.row_slots) == (160, 180)
