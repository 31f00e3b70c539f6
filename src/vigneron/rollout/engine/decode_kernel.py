"""Triton kernel: attention of one new token per row over its cached keys and values, each read once. It also writes
the new token's key and value into the cache.

A program handles one row and one key head, with all query heads that share it. Rows of a group share the keys and
values of their prompt, which are in a cache of their own. Windows, caps and sinks are those of `policy.attention`: a
row's first slot, c · tanh(score / c), and exp(sink) in the softmax's denominator.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from vigneron.rollout.engine.decode_tiles import Slots, Tiles


@triton.jit
def _block(  # type: ignore[no-untyped-def]
    q, keys, values, base, slot, first, length, cache_slot, highest, total, mixed,
    D: tl.constexpr, D_PADDED: tl.constexpr, BLOCK: tl.constexpr, SCALE: tl.constexpr, CAP: tl.constexpr,
):  # fmt: skip
    """The softmax so far, with the slots from `slot` on that are in [first, length)."""
    d = tl.arange(0, D_PADDED)
    s = slot + tl.arange(0, BLOCK)
    inside = (s[:, None] < length) & (d[None, :] < D)
    offset = base + s[:, None].to(tl.int64) * cache_slot + d[None, :]
    k = tl.load(keys + offset, mask=inside, other=0.0)
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * SCALE
    if CAP > 0:
        scores = CAP * (2 * tl.sigmoid(2 * scores / CAP) - 1)
    scores = tl.where((s[None, :] < length) & (s[None, :] >= first), scores, float("-inf"))
    new_highest = tl.maximum(highest, tl.max(scores, 1))
    reference = tl.where(new_highest == float("-inf"), 0.0, new_highest)
    shrink = tl.exp(highest - reference)
    weights = tl.exp(scores - reference[:, None])
    v = tl.load(values + offset, mask=inside, other=0.0)
    mixed = mixed * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
    total = total * shrink + tl.sum(weights, 1)
    return new_highest, total, mixed


@triton.jit
def _decode(  # type: ignore[no-untyped-def]
    query, new_key, new_value, keys, values, prompt_keys, prompt_values,
    slots, prompts, starts, firsts, sinks, out,
    query_row, query_head, key_row, key_head, value_row, value_head,
    cache_row, cache_head, cache_slot, prompt_row, prompt_head, prompt_slot,
    SHARING: tl.constexpr, SHARING_PADDED: tl.constexpr, D: tl.constexpr, D_PADDED: tl.constexpr, BLOCK: tl.constexpr,
    SCALE: tl.constexpr, SHARED: tl.constexpr, WINDOW: tl.constexpr, CAP: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    slot = tl.load(slots + row)
    first = tl.load(firsts + row) if WINDOW else 0
    g = tl.arange(0, SHARING_PADDED)
    d = tl.arange(0, D_PADDED)
    real = (g[:, None] < SHARING) & (d[None, :] < D)
    q = tl.load(query + row * query_row + (head * SHARING + g)[:, None] * query_head + d[None, :], mask=real, other=0.0)
    highest = tl.full([SHARING_PADDED], float("-inf"), tl.float32)
    total = tl.zeros([SHARING_PADDED], tl.float32)
    mixed = tl.zeros([SHARING_PADDED, D_PADDED], tl.float32)
    if SINKS:  # as a slot with this score and the value 0
        highest = tl.load(sinks + head * SHARING + g, mask=g < SHARING, other=0.0).to(tl.float32)
        total = tl.full([SHARING_PADDED], 1.0, tl.float32)
    start = slot * 0
    if SHARED:
        start = tl.load(starts + row)
        base = tl.load(prompts + row).to(tl.int64) * prompt_row + head * prompt_head
        for at in range(first // BLOCK * BLOCK, start, BLOCK):
            highest, total, mixed = _block(
                q, prompt_keys, prompt_values, base, at, first, start, prompt_slot, highest, total, mixed,
                D, D_PADDED, BLOCK, SCALE, CAP,
            )  # fmt: skip
    base = row * cache_row + head * cache_head
    own_first = tl.maximum(first - start, 0)
    own = slot - start
    for at in range(own_first // BLOCK * BLOCK, own, BLOCK):
        highest, total, mixed = _block(
            q, keys, values, base, at, own_first, own, cache_slot, highest, total, mixed,
            D, D_PADDED, BLOCK, SCALE, CAP,
        )  # fmt: skip
    k = tl.load(new_key + row * key_row + head * key_head + d, mask=d < D, other=0.0)
    v = tl.load(new_value + row * value_row + head * value_head + d, mask=d < D, other=0.0)
    to = base + own.to(tl.int64) * cache_slot + d
    tl.store(keys + to, k, mask=d < D)
    tl.store(values + to, v, mask=d < D)
    score = tl.sum(q.to(tl.float32) * k.to(tl.float32)[None, :], 1) * SCALE
    if CAP > 0:
        score = CAP * (2 * tl.sigmoid(2 * score / CAP) - 1)
    new_highest = tl.maximum(highest, score)
    shrink = tl.exp(highest - new_highest)
    weight = tl.exp(score - new_highest)
    mixed = mixed * shrink[:, None] + weight.to(v.dtype).to(tl.float32)[:, None] * v.to(tl.float32)[None, :]
    mixed = mixed / (total * shrink + weight)[:, None]
    to = (row * tl.num_programs(1) * SHARING + (head * SHARING + g)[:, None]) * D + d[None, :]
    tl.store(out + to, mixed.to(out.dtype.element_ty), mask=real)


def decode_attention(
    query_RHD: Tensor,
    key_RKD: Tensor,
    value_RKD: Tensor,
    cache: tuple[Tensor, Tensor],
    prompt_cache: tuple[Tensor, Tensor] | None,
    slots: Slots,
    scale: float,
    tiles: Tiles,
    first_R: Tensor | None = None,
    softcap: float | None = None,
    sinks_H: Tensor | None = None,
) -> Tensor:
    """Attention of `query_RHD` over the cached keys and values from slot `first_R` on and the new ones, which go into
    the cache at `slots`. Caches are [C, K, S, D]; without `prompt_cache` a row's cache has its prompt too."""
    rows, heads, size = query_RHD.shape
    keys, values = cache
    prompt_keys, prompt_values = prompt_cache or cache
    key_heads = keys.shape[1]
    query, key, value = (
        part if part.stride(-1) == 1 else part.contiguous() for part in (query_RHD, key_RKD, value_RKD)
    )
    out = torch.empty(rows, heads, size, dtype=query.dtype, device=query.device)
    _decode[(rows, key_heads)](
        query, key, value, keys, values, prompt_keys, prompt_values,
        slots.slot_R, slots.slot_R if slots.prompt_R is None else slots.prompt_R,
        slots.slot_R if slots.start_R is None else slots.start_R,
        slots.slot_R if first_R is None else first_R, slots.slot_R if sinks_H is None else sinks_H.contiguous(), out,
        query.stride(0), query.stride(1), key.stride(0), key.stride(1), value.stride(0), value.stride(1),
        keys.stride(0), keys.stride(1), keys.stride(2),
        prompt_keys.stride(0), prompt_keys.stride(1), prompt_keys.stride(2),
        SHARING=heads // key_heads, SHARING_PADDED=tiles.sharing, D=size, D_PADDED=tiles.size, BLOCK=tiles.block,
        SCALE=scale, SHARED=prompt_cache is not None, WINDOW=first_R is not None, CAP=softcap or 0.0,
        SINKS=sinks_H is not None, num_warps=4, num_stages=tiles.stages,
    )  # fmt: skip
    return out
