"""Triton kernels of `training.adamw`: a whole update in one pass over a parameter, without temporaries, and the rounded
sum of two gradients. The equations are those of `core.adamw`, `core.moments` and `core.rounding`."""

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from vigneron.core.adamw import AdamWStep
from vigneron.core.moments import BLOCK, DECADES, dynamic_map

ROWS = 4
"""Blocks of 256 values in a program."""


@triton.jit
def _bits(key, position):  # type: ignore[no-untyped-def]
    """`core.rounding.rounding_bits`: one round of splitmix64."""
    x = (position ^ key).to(tl.uint64, bitcast=True) + 0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return ((x ^ (x >> 31)) >> 48).to(tl.int32)


@triton.jit
def _rounded(value, key, position):  # type: ignore[no-untyped-def]
    carried = (value.to(tl.int32, bitcast=True) + _bits(key, position)) & -65536
    finite = tl.abs(value) < float("inf")
    return tl.where(finite, carried.to(tl.float32, bitcast=True), value).to(tl.bfloat16)


@triton.jit
def _code(scaled, edges, SIGNED: tl.constexpr, DECADES: tl.constexpr):  # type: ignore[no-untyped-def]
    """The nearest code of values from −1 to 1: the decade from its edges, then the bin in it."""
    size = tl.abs(scaled)
    decade = tl.full(scaled.shape, -1, tl.int32)
    stretch = tl.full(scaled.shape, 1e7, tl.float32)  # 10⁶ in the first decade, 1 in the last
    for number in tl.static_range(DECADES):
        above = size > tl.load(edges + number)
        decade += above.to(tl.int32)
        stretch = tl.where(above, stretch * 0.1, stretch)
    bins = (1 << (tl.maximum(decade, 0) + (0 if SIGNED else 1))).to(tl.float32)
    at = tl.floor((size * stretch - 0.1) * (1 / 0.9) * bins)
    at = tl.minimum(tl.maximum(at, 0.0), bins - 1)
    index = tl.where(decade < 0, 0, (bins + at).to(tl.int32) - (0 if SIGNED else 1))
    top = size > tl.load(edges + DECADES)
    if SIGNED:
        index = tl.where(top & (scaled > 0), 128, index)
        return 127 + tl.where(scaled < 0, -index, index)
    return tl.where(top, 255, tl.maximum(index, 1))


@triton.jit
def _scaled(values):  # type: ignore[no-untyped-def]
    scale = tl.max(tl.abs(values), axis=1)
    return values / tl.where(scale > 0, scale, 1.0)[:, None], scale


@triton.jit(do_not_specialize=["start", "count", "key"])
def _update(  # type: ignore[no-untyped-def]
    weight, grad, m_state, v_state, m_scales, v_scales, m_map, v_map, m_edges, v_edges, start, count, key,
    kept, size, root_correction, beta1, beta2, rest1, rest2, eps,
    ROUNDS: tl.constexpr, EIGHT_BIT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, DECADES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    at = row[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = at < count
    w = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
    if EIGHT_BIT:
        real = row * BLOCK < count
        m_code = tl.load(m_state + at, mask=inside, other=127).to(tl.int32)
        v_code = tl.load(v_state + at, mask=inside, other=0).to(tl.int32)
        m = tl.load(m_map + m_code) * tl.load(m_scales + row, mask=real, other=0.0)[:, None]
        v = tl.load(v_map + v_code) * tl.load(v_scales + row, mask=real, other=0.0)[:, None]
    else:
        m = tl.load(m_state + at, mask=inside, other=0.0)
        v = tl.load(v_state + at, mask=inside, other=0.0)
    m = beta1 * m + rest1 * g
    v = beta2 * v + rest2 * g * g
    w = kept * w - size * m / (tl.sqrt(v) / root_correction + eps)
    tl.store(weight + at, _rounded(w, key, start + at) if ROUNDS else w, mask=inside)
    if EIGHT_BIT:
        m_scaled, m_scale = _scaled(m)
        v_scaled, v_scale = _scaled(v)
        tl.store(m_state + at, _code(m_scaled, m_edges, True, DECADES).to(tl.uint8), mask=inside)
        tl.store(v_state + at, _code(v_scaled, v_edges, False, DECADES).to(tl.uint8), mask=inside)
        tl.store(m_scales + row, m_scale, mask=real)
        tl.store(v_scales + row, v_scale, mask=real)
    else:
        tl.store(m_state + at, m, mask=inside)
        tl.store(v_state + at, v, mask=inside)


@triton.jit(do_not_specialize=["count", "key"])
def _add(total, part, count, key, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    exact = tl.load(total + at, mask=inside, other=0.0).to(tl.float32)
    exact += tl.load(part + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(total + at, _rounded(exact, key, at), mask=inside)


def update_(
    weight_N: Tensor, grad_N: Tensor, state: dict[str, Tensor], step: AdamWStep, *, key: int, start: int
) -> None:
    """One step of a parameter, or of a part of it that begins at `start`; weight and state are changed in place."""
    eight_bit = "exp_avg_scale" in state
    m_map, m_edges = _tables(True, weight_N.device)
    v_map, v_edges = _tables(False, weight_N.device)
    m_state, v_state = state["exp_avg"], state["exp_avg_sq"]
    scales = [state[name] if eight_bit else m_map for name in ("exp_avg_scale", "exp_avg_sq_scale")]
    count = weight_N.numel()
    _update[(triton.cdiv(count, ROWS * BLOCK),)](
        weight_N, grad_N, m_state, v_state, *scales, m_map, v_map, m_edges, v_edges, start, count, key,
        step.kept, step.size, step.root_correction, step.beta1, step.beta2, 1 - step.beta1, 1 - step.beta2, step.eps,
        ROUNDS=weight_N.dtype == torch.bfloat16, EIGHT_BIT=eight_bit, ROWS=ROWS, BLOCK=BLOCK, DECADES=DECADES,
    )  # fmt: skip


def add_rounded_(total_N: Tensor, part_N: Tensor, key: int) -> None:
    """`core.rounding.add_rounded_`."""
    block = ROWS * BLOCK
    _add[(triton.cdiv(total_N.numel(), block),)](total_N, part_N, total_N.numel(), key, BLOCK=block)


@cache
def _tables(signed: bool, device: torch.device) -> tuple[Tensor, Tensor]:
    """The map, and the midpoints between the last value of a decade and the first of the next: 0 is below the first
    decade, 1 above the last."""
    values = dynamic_map(signed)
    positive = values[values >= 0]
    firsts = [2**decade if signed else 2 ** (decade + 1) - 1 for decade in range(DECADES + 1)]
    edges = torch.stack([(positive[first - 1] + positive[first]) / 2 for first in firsts])
    return values.to(device), edges.to(device)
