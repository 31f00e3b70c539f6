"""Triton kernels for what a decoder layer does between its matrix products: one launch each, where torch makes several.

They compute in float32 and round where transformers' modules round under autocast. `fused_ops` has their gradients.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from vigneron.policy.activations import Activation


@triton.jit
def _rms_norm(  # type: ignore[no-untyped-def]
    x, weight, out, scales, outer_stride, inner_stride, inner,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, EPS: tl.constexpr, ADDED: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    real = at < SIZE
    given = tl.load(x + row // inner * outer_stride + row % inner * inner_stride + at, mask=real, other=0.0)
    numbers = given.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(numbers * numbers) / SIZE + EPS)
    if KEEP:
        tl.store(scales + row, scale)
    numbers = (numbers * scale).to(given.dtype).to(tl.float32)
    weights = tl.load(weight + at, mask=real, other=0.0).to(tl.float32) + ADDED
    tl.store(out + row * SIZE + at, (numbers * weights).to(out.dtype.element_ty), mask=real)


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, added: float, dtype: torch.dtype, scales: Tensor | None = None
) -> Tensor:
    """x / √(mean x² + eps) · (weight + added) over the last dimension, in `dtype`. `scales` takes 1 / √(…)."""
    size, inner = x.shape[-1], x.shape[-2] if x.dim() > 2 else 1
    x = x if x.stride(-1) == 1 and _is_two_level(x) else x.contiguous()
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    outer_stride, inner_stride = (x.stride(-3), x.stride(-2)) if x.dim() > 2 else (x.stride(0), 0)
    _rms_norm[(x.numel() // size,)](
        x, weight, out, out if scales is None else scales, outer_stride, inner_stride, inner,
        SIZE=size, BLOCK=triton.next_power_of_2(size), EPS=eps, ADDED=added, KEEP=scales is not None,
        num_warps=8 if size > 2048 else 4,
    )  # fmt: skip
    return out


@triton.jit
def _rms_norm_gradient(  # type: ignore[no-untyped-def]
    to_out, x, weight, scales, to_x, sums, rows,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, ADDED: tl.constexpr, TRAINED: tl.constexpr,
):  # fmt: skip
    at = tl.arange(0, BLOCK)
    real = at < SIZE
    weights = tl.load(weight + at, mask=real, other=0.0).to(tl.float32) + ADDED
    total = tl.zeros([BLOCK], tl.float32)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        place = tl.full([], SIZE, tl.int64) * row + at
        given = tl.load(to_out + place, mask=real, other=0.0).to(tl.float32)
        scale = tl.load(scales + row)
        normed = tl.load(x + place, mask=real, other=0.0).to(tl.float32) * scale
        weighted = given * weights
        gradient = (weighted - normed * (tl.sum(weighted * normed) / SIZE)) * scale
        tl.store(to_x + place, gradient.to(to_x.dtype.element_ty), mask=real)
        if TRAINED:
            total += given * normed
    if TRAINED:
        tl.store(sums + tl.program_id(0) * SIZE + at, total, mask=real)


PROGRAMS = 512
"""That sum the gradient of a norm's weights: a fixed number of partial sums, not one that depends on the GPU."""


def rms_norm_gradient(
    to_out: Tensor, x: Tensor, weight: Tensor, scales: Tensor, added: float, *, trained: bool
) -> tuple[Tensor, Tensor | None]:
    """The gradients of `x` and, if it is trained, of `weight`. `x` is contiguous."""
    size, rows = x.shape[-1], x.numel() // x.shape[-1]
    programs = min(PROGRAMS, rows)
    to_x = torch.empty_like(x)
    sums = torch.empty(programs if trained else 0, size, dtype=torch.float32, device=x.device)
    _rms_norm_gradient[(programs,)](
        to_out.contiguous(), x, weight, scales, to_x, sums, rows,
        SIZE=size, BLOCK=triton.next_power_of_2(size), ADDED=added, TRAINED=trained, num_warps=8 if size > 2048 else 4,
    )  # fmt: skip
    return to_x, sums.sum(0).to(weight.dtype) if trained else None


def _is_two_level(x: Tensor) -> bool:
    """Whether all dimensions before the last two have one common stride."""
    return all(x.stride(d) == x.stride(d + 1) * x.shape[d + 1] for d in range(x.dim() - 3))


@triton.jit
def _turn(  # type: ignore[no-untyped-def]
    source, target, row, token, at, source_row, source_head, source_token, low_cos, high_cos, low_sin, high_sin,
    HEADS: tl.constexpr, PADDED: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr, BACK: tl.constexpr,
):  # fmt: skip
    """All heads of a token."""
    head, d = tl.arange(0, PADDED)[:, None], tl.arange(0, BLOCK)[None, :]
    real = (head < HEADS) & (d < HALF)
    place = source + row * source_row + token * source_token + head * source_head + d
    to = target + at * (HEADS * 2 * HALF) + head * (2 * HALF) + d
    low = tl.load(place, mask=real, other=0.0).to(tl.float32)
    high = tl.load(place + HALF, mask=real, other=0.0).to(tl.float32)
    if BACK:
        new_low, new_high = low * low_cos + high * high_sin, high * high_cos - low * low_sin
    else:
        new_low, new_high = low * low_cos - high * low_sin, high * high_cos + low * high_sin
    tl.store(to, new_low.to(target.dtype.element_ty), mask=real)
    tl.store(to + HALF, new_high.to(target.dtype.element_ty), mask=real)


@triton.jit
def _rotate(  # type: ignore[no-untyped-def]
    query, key, cos, sin, query_out, key_out, tokens,
    query_row, query_head, query_token, key_row, key_head, key_token, angle_row, angle_token,
    HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, PADDED: tl.constexpr, KEYS_PADDED: tl.constexpr,
    HALF: tl.constexpr, BLOCK: tl.constexpr, BACK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64)
    row, token = at // tokens, at % tokens
    d = tl.arange(0, BLOCK)[None, :]
    real = d < HALF
    angles = row * angle_row + token * angle_token + d
    low_cos = tl.load(cos + angles, mask=real, other=0.0).to(tl.float32)
    high_cos = tl.load(cos + angles + HALF, mask=real, other=0.0).to(tl.float32)
    low_sin = tl.load(sin + angles, mask=real, other=0.0).to(tl.float32)
    high_sin = tl.load(sin + angles + HALF, mask=real, other=0.0).to(tl.float32)
    _turn(
        query, query_out, row, token, at, query_row, query_head, query_token, low_cos, high_cos, low_sin, high_sin,
        HEADS, PADDED, HALF, BLOCK, BACK,
    )  # fmt: skip
    _turn(
        key, key_out, row, token, at, key_row, key_head, key_token, low_cos, high_cos, low_sin, high_sin,
        KEY_HEADS, KEYS_PADDED, HALF, BLOCK, BACK,
    )  # fmt: skip


def rotate(
    query_RHSD: Tensor, key_RKSD: Tensor, cos_RSD: Tensor, sin_RSD: Tensor, dtype: torch.dtype, *, back: bool = False
) -> tuple[Tensor, Tensor]:
    """Rotary positions of queries and keys, where dimension d turns with d + D/2, in `dtype`; `back`: of gradients."""
    rows, heads, tokens, size = query_RHSD.shape
    key_heads = key_RKSD.shape[1]
    query = query_RHSD if query_RHSD.stride(-1) == 1 else query_RHSD.contiguous()
    key = key_RKSD if key_RKSD.stride(-1) == 1 else key_RKSD.contiguous()
    cos, sin = (angle.expand(rows, tokens, size) for angle in (cos_RSD.contiguous(), sin_RSD.contiguous()))
    query_out, key_out = (
        torch.empty(rows, tokens, count, size, dtype=dtype, device=query.device) for count in (heads, key_heads)
    )
    _rotate[(rows * tokens,)](
        query, key, cos, sin, query_out, key_out, tokens,
        query.stride(0), query.stride(1), query.stride(2), key.stride(0), key.stride(1), key.stride(2),
        cos.stride(0), cos.stride(1),
        HEADS=heads, KEY_HEADS=key_heads, PADDED=triton.next_power_of_2(heads),
        KEYS_PADDED=triton.next_power_of_2(key_heads), HALF=size // 2, BLOCK=triton.next_power_of_2(size // 2),
        BACK=back, num_warps=4,
    )  # fmt: skip
    return query_out.transpose(1, 2), key_out.transpose(1, 2)


@triton.jit
def _gated(gate, up, out, gate_row, up_row, SIZE: tl.constexpr, BLOCK: tl.constexpr, GELU: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = at < SIZE
    given = tl.load(gate + row * gate_row + at, mask=real, other=0.0)
    g = given.to(tl.float32)
    if GELU:
        inner = 0.7978845608028654 * (g + 0.044715 * g * g * g)
        active = g * tl.sigmoid(2 * inner)  # 0.5 (1 + tanh z) = sigmoid(2 z)
    else:
        active = g * tl.sigmoid(g)
    active = active.to(given.dtype).to(tl.float32)
    u = tl.load(up + row * up_row + at, mask=real, other=0.0).to(tl.float32)
    tl.store(out + row * SIZE + at, (active * u).to(out.dtype.element_ty), mask=real)


def gated(gate: Tensor, up: Tensor, activation: Activation) -> Tensor:
    """activation(gate) · up, for two tensors whose rows may be parts of longer ones."""
    shape, size = gate.shape, gate.shape[-1]
    gate, up = (part.reshape(-1, size) for part in (gate, up))
    out = torch.empty(shape, dtype=gate.dtype, device=gate.device)
    block = min(1024, triton.next_power_of_2(size))
    _gated[(gate.shape[0], triton.cdiv(size, block))](
        gate, up, out, gate.stride(0), up.stride(0), SIZE=size, BLOCK=block, GELU=activation == "gelu_tanh", num_warps=4
    )
    return out


@triton.jit
def _gated_gradient(  # type: ignore[no-untyped-def]
    to_out, gate, up, to_gate, to_up, gate_row, up_row, SIZE: tl.constexpr, BLOCK: tl.constexpr, GELU: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = at < SIZE
    given = tl.load(to_out + row * SIZE + at, mask=real, other=0.0).to(tl.float32)
    g = tl.load(gate + row * gate_row + at, mask=real, other=0.0)
    dtype = g.dtype
    g = g.to(tl.float32)
    u = tl.load(up + row * up_row + at, mask=real, other=0.0).to(tl.float32)
    if GELU:
        s = tl.sigmoid(2 * 0.7978845608028654 * (g + 0.044715 * g * g * g))
        slope = s + g * s * (1 - s) * 2 * 0.7978845608028654 * (1 + 3 * 0.044715 * g * g)
    else:
        s = tl.sigmoid(g)
        slope = s + g * s * (1 - s)
    active = (g * s).to(dtype).to(tl.float32)
    tl.store(to_gate + row * SIZE + at, (given * u * slope).to(dtype), mask=real)
    tl.store(to_up + row * SIZE + at, (given * active).to(dtype), mask=real)


def gated_gradient(to_out: Tensor, gate: Tensor, up: Tensor, activation: Activation) -> tuple[Tensor, Tensor]:
    """The gradients of `gate` and `up`."""
    shape, size = gate.shape, gate.shape[-1]
    to_out, gate, up = (part.reshape(-1, size) for part in (to_out, gate, up))
    to_gate, to_up = (torch.empty(shape, dtype=gate.dtype, device=gate.device) for _ in range(2))
    block = min(1024, triton.next_power_of_2(size))
    _gated_gradient[(gate.shape[0], triton.cdiv(size, block))](
        to_out.contiguous(), gate, up, to_gate, to_up, gate.stride(0), up.stride(0),
        SIZE=size, BLOCK=block, GELU=activation == "gelu_tanh", num_warps=4,
    )  # fmt: skip
    return to_gate, to_up


@triton.jit
def _add_adapters(  # type: ignore[no-untyped-def]
    y, second, starts, scales, rows, y_row,
    RANK: tl.constexpr, RANK_PADDED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    rank = tl.arange(0, RANK_PADDED)
    start = tl.load(starts + tl.program_id(1))
    scale = tl.load(scales + tl.program_id(1))
    inside = row[:, None] < rows
    at_row = row.to(tl.int64)[:, None] * y_row
    first = tl.load(y + at_row + start + rank[None, :], mask=inside & (rank[None, :] < RANK), other=0.0)
    weights = tl.load(second + column[None, :] * RANK + rank[:, None], mask=rank[:, None] < RANK, other=0.0)
    added = tl.dot(first, weights) * scale
    to = y + at_row + column[None, :]
    base = tl.load(to, mask=inside, other=0.0).to(tl.float32)
    tl.store(to, (base + added).to(y.dtype.element_ty), mask=inside)


def add_adapters(y_NC: Tensor, second_CR: Tensor, starts: Tensor, scales: Tensor, block: int) -> None:
    """Add each column's adapter in place: scale · (A x) Bᵀ, where A x are columns of `y_NC` itself. The columns of
    `second_CR` come in blocks; `starts` and `scales` have each block's first column of A x and its scale."""
    columns, rank = second_CR.shape
    rows = 16 if y_NC.shape[0] <= 16 else 32 if y_NC.shape[0] <= 32 else 64
    _add_adapters[(triton.cdiv(y_NC.shape[0], rows), columns // block)](
        y_NC, second_CR, starts, scales, y_NC.shape[0], y_NC.stride(0),
        RANK=rank, RANK_PADDED=max(16, triton.next_power_of_2(rank)), ROWS=rows, COLUMNS=block, num_warps=4,
    )  # fmt: skip
