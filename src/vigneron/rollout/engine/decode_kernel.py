"""Triton kernel: attention of one new token per row over its keys and values in a paged cache, each read once. It also
writes the new token's key and value into the cache.

A program handles one row and one key head, with all query heads that share it. A row's pages are those of its prompt,
which the rows of a group share, and then its own. Windows, caps and sinks are those of `policy.attention`: a row's
first slot, c · tanh(score / c), and exp(sink) in the softmax's denominator.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from vigneron.rollout.engine.decode_tiles import PAGE, Slots, Tiles


@triton.jit
def _block(  # type: ignore[no-untyped-def]
    q, keys, values, page, of_head, slot, first, length, cache_page, cache_slot, highest, total, mixed,
    D: tl.constexpr, D_PADDED: tl.constexpr, BLOCK: tl.constexpr, PAGE: tl.constexpr, SCALE: tl.constexpr,
    CAP: tl.constexpr,
):  # fmt: skip
    """The softmax so far, with the slots from `slot` on that are in [first, length), all of them in `page`."""
    d = tl.arange(0, D_PADDED)
    s = slot + tl.arange(0, BLOCK)
    inside = (s[:, None] < length) & (d[None, :] < D)
    offset = page * cache_page + of_head + (s % PAGE)[:, None].to(tl.int64) * cache_slot + d[None, :]
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
    query, new_key, new_value, keys, values, slots, starts, pages, firsts, sinks, out,
    query_row, query_head, key_row, key_head, value_row, value_head,
    cache_page, cache_head, cache_slot, pages_row,
    SHARING: tl.constexpr, SHARING_PADDED: tl.constexpr, D: tl.constexpr, D_PADDED: tl.constexpr, BLOCK: tl.constexpr,
    PAGE: tl.constexpr, SCALE: tl.constexpr, WINDOW: tl.constexpr, CAP: tl.constexpr, SINKS: tl.constexpr,
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
    start = tl.load(starts + row)
    own = slot - start
    pages += row * pages_row
    own_pages = pages + (start + PAGE - 1) // PAGE
    of_head = head * cache_head
    # Each block's page is read during the block before it, so that nothing waits for it.
    begin = first // BLOCK * BLOCK
    page = tl.load(pages + begin // PAGE, mask=begin < start, other=0)
    for at in range(begin, start, BLOCK):
        following = tl.load(pages + (at + BLOCK) // PAGE, mask=at + BLOCK < start, other=0)
        highest, total, mixed = _block(
            q, keys, values, page, of_head, at, first, start, cache_page, cache_slot, highest, total, mixed,
            D, D_PADDED, BLOCK, PAGE, SCALE, CAP,
        )  # fmt: skip
        page = following
    own_first = tl.maximum(first - start, 0)
    begin = own_first // BLOCK * BLOCK
    page = tl.load(own_pages + begin // PAGE, mask=begin < own, other=0)
    for at in range(begin, own, BLOCK):
        following = tl.load(own_pages + (at + BLOCK) // PAGE, mask=at + BLOCK < own, other=0)
        highest, total, mixed = _block(
            q, keys, values, page, of_head, at, own_first, own, cache_page, cache_slot, highest, total, mixed,
            D, D_PADDED, BLOCK, PAGE, SCALE, CAP,
        )  # fmt: skip
        page = following
    k = tl.load(new_key + row * key_row + head * key_head + d, mask=d < D, other=0.0)
    v = tl.load(new_value + row * value_row + head * value_head + d, mask=d < D, other=0.0)
    to = tl.load(own_pages + own // PAGE) * cache_page + of_head + own % PAGE * cache_slot + d
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
    slots: Slots,
    scale: float,
    tiles: Tiles,
    first_R: Tensor | None = None,
    softcap: float | None = None,
    sinks_H: Tensor | None = None,
) -> Tensor:
    """Attention of `query_RHD` over the cached keys and values from slot `first_R` on and the new ones, which go into
    the cache at `slots`. Keys and values are [pages, K, PAGE, D]."""
    rows, heads, size = query_RHD.shape
    keys, values = cache
    key_heads = keys.shape[1]
    query, key, value = (
        part if part.stride(-1) == 1 else part.contiguous() for part in (query_RHD, key_RKD, value_RKD)
    )
    out = torch.empty(rows, heads, size, dtype=query.dtype, device=query.device)
    slot_R, start_R, pages_RN = slots
    assert start_R is not None
    assert pages_RN is not None
    _decode[(rows, key_heads)](
        query, key, value, keys, values, slot_R, start_R, pages_RN,
        slot_R if first_R is None else first_R, slot_R if sinks_H is None else sinks_H.contiguous(), out,
        query.stride(0), query.stride(1), key.stride(0), key.stride(1), value.stride(0), value.stride(1),
        keys.stride(0), keys.stride(1), keys.stride(2), pages_RN.stride(0),
        SHARING=heads // key_heads, SHARING_PADDED=tiles.sharing, D=size, D_PADDED=tiles.size, BLOCK=tiles.block,
        PAGE=PAGE, SCALE=scale, WINDOW=first_R is not None, CAP=softcap or 0.0, SINKS=sinks_H is not None,
        num_warps=4, num_stages=tiles.stages,
    )  # fmt: skip
    return out
