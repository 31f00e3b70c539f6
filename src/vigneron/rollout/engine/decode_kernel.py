"""Triton kernel: attention of one new token per row over its cached keys and values, each read once.

A program handles one row and one key head, with all query heads that share it. Windows, caps and sinks are those of
`policy.attention`: a row's first slot, c · tanh(score / c), and exp(sink) in the softmax's denominator.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from vigneron.rollout.engine.decode_tiles import Tiles


@triton.jit
def _decode(  # type: ignore[no-untyped-def]
    query, keys, values, slots, firsts, sinks, out,
    query_row, query_head, cache_row, cache_head, cache_slot,
    SHARING: tl.constexpr, SHARING_PADDED: tl.constexpr, D: tl.constexpr, D_PADDED: tl.constexpr, BLOCK: tl.constexpr,
    SCALE: tl.constexpr, WINDOW: tl.constexpr, CAP: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    head = tl.program_id(1)
    length = tl.load(slots + row) + 1
    first = tl.load(firsts + row) if WINDOW else 0
    g = tl.arange(0, SHARING_PADDED)
    d = tl.arange(0, D_PADDED)
    real = (g[:, None] < SHARING) & (d[None, :] < D)
    at = row.to(tl.int64) * query_row + (head * SHARING + g)[:, None] * query_head + d[None, :]
    q = tl.load(query + at, mask=real, other=0.0)
    base = row.to(tl.int64) * cache_row + head * cache_head
    highest = tl.full([SHARING_PADDED], float("-inf"), tl.float32)
    total = tl.zeros([SHARING_PADDED], tl.float32)
    mixed = tl.zeros([SHARING_PADDED, D_PADDED], tl.float32)
    if SINKS:  # as a slot with this score and the value 0
        highest = tl.load(sinks + head * SHARING + g, mask=g < SHARING, other=0.0).to(tl.float32)
        total = tl.full([SHARING_PADDED], 1.0, tl.float32)
    for start in range(first // BLOCK * BLOCK, length, BLOCK):
        s = start + tl.arange(0, BLOCK)
        inside = (s[:, None] < length) & (d[None, :] < D)
        offset = base + s[:, None] * cache_slot + d[None, :]
        k = tl.load(keys + offset, mask=inside, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * SCALE
        if CAP > 0:
            scores = CAP * (2 * tl.sigmoid(2 * scores / CAP) - 1)
        scores = tl.where((s[None, :] < length) & (s[None, :] >= first), scores, float("-inf"))
        new_highest = tl.maximum(highest, tl.max(scores, 1))
        shrink = tl.exp(highest - new_highest)
        weights = tl.exp(scores - new_highest[:, None])
        v = tl.load(values + offset, mask=inside, other=0.0)
        mixed = mixed * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        total = total * shrink + tl.sum(weights, 1)
        highest = new_highest
    mixed = mixed / total[:, None]
    to = (row.to(tl.int64) * tl.num_programs(1) * SHARING + (head * SHARING + g)[:, None]) * D + d[None, :]
    tl.store(out + to, mixed.to(out.dtype.element_ty), mask=real)


def decode_attention(
    query_RHD: Tensor,
    keys: Tensor,
    values: Tensor,
    slots_R: Tensor,
    scale: float,
    tiles: Tiles,
    first_R: Tensor | None = None,
    softcap: float | None = None,
    sinks_H: Tensor | None = None,
) -> Tensor:
    """`query_RHD` [R, H, D] over `keys` and `values` [C, K, S, D], row r from slot `first_R[r]` up to and with slot
    `slots_R[r]`."""
    rows, heads, size = query_RHD.shape
    key_heads = keys.shape[1]
    sharing = heads // key_heads
    query_RHD = query_RHD.contiguous()
    out = torch.empty_like(query_RHD)
    _decode[(rows, key_heads)](
        query_RHD, keys, values, slots_R,
        slots_R if first_R is None else first_R, slots_R if sinks_H is None else sinks_H.contiguous(), out,
        query_RHD.stride(0), query_RHD.stride(1), keys.stride(0), keys.stride(1), keys.stride(2),
        SHARING=sharing, SHARING_PADDED=tiles.sharing, D=size, D_PADDED=tiles.size, BLOCK=tiles.block, SCALE=scale,
        WINDOW=first_R is not None, CAP=softcap or 0.0, SINKS=sinks_H is not None,
        num_warps=4, num_stages=tiles.stages,
    )  # fmt: skip
    return out
