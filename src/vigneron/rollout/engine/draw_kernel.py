"""Triton kernels that draw the next token of each row: `core.draws.draw` and the token's log-prob, with the logits read
once. The draws are those of the formulas, but where rounding in float32 decides."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from vigneron.core.draws import DRAW_BLOCK

PARTS = 16
"""Blocks in a program of the first kernel."""


@triton.jit
def _block_sums(  # type: ignore[no-untyped-def]
    logits, sums, highest, columns, blocks, chunks, inverse, PARTS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Σ exp(z − m) of each block, for the largest z of PARTS blocks, m."""
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    block = chunk * PARTS + tl.arange(0, PARTS)
    at = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    z = tl.load(logits + row * columns + at, mask=at < columns, other=float("-inf")) * inverse
    most = tl.max(z)
    weights = tl.where(z == float("-inf"), 0.0, tl.exp(z - most))
    tl.store(sums + row * blocks + block, tl.sum(weights, axis=1), mask=block < blocks)
    tl.store(highest + row * chunks + chunk, most)


@triton.jit
def _first_above(weights, target, COUNT: tl.constexpr):  # type: ignore[no-untyped-def]
    """The first index with a weight at which the running sum exceeds the target, and the rest of the target there. If
    rounding leaves none, the last one with a weight."""
    at = tl.arange(0, COUNT)
    running = tl.cumsum(weights, axis=0)
    first = tl.min(tl.where((running > target) & (weights > 0), at, COUNT))
    last = tl.max(tl.where(weights > 0, at, 0))
    found = tl.where(first < COUNT, first, last)
    before = tl.sum(tl.where(at == found, running - weights, 0.0))
    return found, tl.maximum(target - before, 0.0)


@triton.jit
def _draw(  # type: ignore[no-untyped-def]
    logits, sums, highest, keys, positions, tokens, logprobs, columns, blocks, chunks,
    inverse, PARTS: tl.constexpr, BLOCK: tl.constexpr, COUNT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    block = tl.arange(0, COUNT)
    real = block < blocks
    peaks = tl.load(highest + row * chunks + block // PARTS, mask=real, other=float("-inf"))
    most = tl.max(peaks)
    weights = (tl.load(sums + row * blocks + block, mask=real, other=0.0) * tl.exp(peaks - most)).to(tl.float64)
    total = tl.sum(weights)
    # `core.draws.uniform_at`: one round of splitmix64.
    x = (tl.load(keys + row) ^ tl.load(positions + row)).to(tl.uint64, bitcast=True) + 0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    uniform = ((x ^ (x >> 31)) >> 11).to(tl.float64) * (1.0 / 9007199254740992.0)
    chosen, left = _first_above(weights, uniform * total, COUNT)
    at = chosen * BLOCK + tl.arange(0, BLOCK)
    z = tl.load(logits + row * columns + at, mask=at < columns, other=float("-inf")) * inverse
    inside, _ = _first_above(tl.where(z == float("-inf"), 0.0, tl.exp(z - most)).to(tl.float64), left, BLOCK)
    token = tl.minimum(chosen * BLOCK + inside, columns - 1)  # with NaN, any token
    logprob = tl.load(logits + row * columns + token) * inverse - most - tl.log(total).to(tl.float32)
    tl.store(tokens + row, token.to(tl.int64))
    tl.store(logprobs + row, logprob)


def draw_tokens(logits_NV: Tensor, key_N: Tensor, written_N: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """A token of each row from softmax(logits / temperature), by the row's key and its number of tokens so far; and its
    log-prob."""
    count, columns = logits_NV.shape
    blocks, chunks = triton.cdiv(columns, DRAW_BLOCK), triton.cdiv(columns, DRAW_BLOCK * PARTS)
    sums_NK = torch.empty(count, blocks, dtype=torch.float32, device=logits_NV.device)
    highest_NC = torch.empty(count, chunks, dtype=torch.float32, device=logits_NV.device)
    token_N = torch.empty(count, dtype=torch.long, device=logits_NV.device)
    logprob_N = torch.empty(count, dtype=torch.float32, device=logits_NV.device)
    if count:
        logits_NV, inverse = logits_NV.contiguous(), 1 / temperature
        sizes: dict[str, Any] = {"PARTS": PARTS, "BLOCK": DRAW_BLOCK}
        _block_sums[(count, chunks)](logits_NV, sums_NK, highest_NC, columns, blocks, chunks, inverse, **sizes)
        _draw[(count,)](
            logits_NV, sums_NK, highest_NC, key_N, written_N, token_N, logprob_N, columns, blocks, chunks,
            inverse, **sizes, COUNT=triton.next_power_of_2(blocks),
        )  # fmt: skip
    return token_N, logprob_N
