"""Triton kernels for what a decoder layer does between its matrix products: one launch each, where torch makes several.

They compute in float32 and round where transformers' modules round under autocast. `fused_ops` has their gradients.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from vigneron.policy.activations import Activation

TILE = 2048
"""Numbers that a program of a norm handles at once: one row, or several short ones."""


def _tile(size: int) -> dict[str, int]:
    """Options of a norm's kernel: each thread has 8 numbers, of which it loads 16 bytes at once."""
    block = triton.next_power_of_2(size)
    rows = max(1, TILE // block)
    return {"SIZE": size, "BLOCK": block, "ROWS": rows, "num_warps": min(16, rows * block // 256)}


@triton.jit(do_not_specialize=["rows"])
def _rms_norm(  # type: ignore[no-untyped-def]
    x, y, weight, total, out, scales, rows, outer_stride, inner_stride, inner, y_stride,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    EPS: tl.constexpr, ADDED: tl.constexpr, ADD: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    at = tl.arange(0, BLOCK)[None, :]
    real = (row < rows) & (at < SIZE)
    place = (row // inner).to(tl.int64) * outer_stride + (row % inner).to(tl.int64) * inner_stride + at
    to = row.to(tl.int64) * SIZE + at
    given = tl.load(x + place, mask=real, other=0.0)
    if ADD:
        more = tl.load(y + row.to(tl.int64) * y_stride + at, mask=real, other=0.0)
        given = (given.to(tl.float32) + more.to(tl.float32)).to(given.dtype)
        tl.store(total + to, given, mask=real)
    numbers = given.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(numbers * numbers, 1)[:, None] / SIZE + EPS)
    if KEEP:
        tl.store(scales + row, scale, mask=row < rows)
    numbers = (numbers * scale).to(given.dtype).to(tl.float32)
    weights = tl.load(weight + at, mask=at < SIZE, other=0.0).to(tl.float32) + ADDED
    tl.store(out + to, (numbers * weights).to(out.dtype.element_ty), mask=real)


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, added: float, dtype: torch.dtype, scales: Tensor | None = None
) -> Tensor:
    """x / √(mean x² + eps) · (weight + added) over the last dimension, in `dtype`. `scales` takes 1 / √(…)."""
    x = x if x.stride(-1) == 1 and _is_two_level(x) else x.contiguous()
    size, inner = x.shape[-1], 1 if x.dim() < 3 or x.is_contiguous() else x.shape[-2]
    rows = x.numel() // size
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    strides = (size, 0) if x.is_contiguous() else (x.stride(-3), x.stride(-2)) if x.dim() > 2 else (x.stride(0), 0)
    tile = _tile(size)
    _rms_norm[(triton.cdiv(rows, tile["ROWS"]),)](
        x, x, weight, x, out, out if scales is None else scales, rows, *strides, inner, 0,
        EPS=eps, ADDED=added, ADD=False, KEEP=scales is not None, **tile,
    )  # fmt: skip
    return out


def add_norm(
    x: Tensor, y: Tensor, weight: Tensor, eps: float, added: float, dtype: torch.dtype, scales: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """x + y in the dtype of x, which is contiguous, and `rms_norm` of it."""
    size, rows = x.shape[-1], x.numel() // x.shape[-1]
    y = _rows(y)
    total, out = torch.empty_like(x), torch.empty(x.shape, dtype=dtype, device=x.device)
    tile = _tile(size)
    _rms_norm[(triton.cdiv(rows, tile["ROWS"]),)](
        x, y, weight, total, out, out if scales is None else scales, rows, size, 0, 1, y.stride(0),
        EPS=eps, ADDED=added, ADD=True, KEEP=scales is not None, **tile,
    )  # fmt: skip
    return total, out


@triton.jit(do_not_specialize=["rows"])
def _rms_norm_gradient(  # type: ignore[no-untyped-def]
    to_out, beside, x, weight, scales, to_x, cast, sums, rows,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    ADDED: tl.constexpr, ADD: tl.constexpr, CAST: tl.constexpr, TRAINED: tl.constexpr,
):  # fmt: skip
    at = tl.arange(0, BLOCK)[None, :]
    inside = at < SIZE
    weights = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32) + ADDED
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    for first in range(tl.program_id(0) * ROWS, rows, tl.num_programs(0) * ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        real = (row < rows) & inside
        place = row.to(tl.int64) * SIZE + at
        given = tl.load(to_out + place, mask=real, other=0.0).to(tl.float32)
        lane = first + tl.arange(0, ROWS)
        scale = tl.load(scales + lane, mask=lane < rows, other=0.0)[:, None]
        normed = tl.load(x + place, mask=real, other=0.0).to(tl.float32) * scale
        weighted = given * weights
        gradient = (weighted - normed * (tl.sum(weighted * normed, 1)[:, None] / SIZE)) * scale
        if ADD:
            gradient += tl.load(beside + place, mask=real, other=0.0).to(tl.float32)
        tl.store(to_x + place, gradient.to(to_x.dtype.element_ty), mask=real)
        if CAST:
            tl.store(cast + place, gradient.to(cast.dtype.element_ty), mask=real)
        if TRAINED:
            total += given * normed
    if TRAINED:
        tl.store(sums + tl.program_id(0) * SIZE + at, tl.sum(total, 0)[None, :], mask=inside)


PROGRAMS = 512
"""That sum the gradient of a norm's weights: a fixed number of partial sums, not one that depends on the GPU."""
REGISTERS: dict[str, int] = {} if torch.version.hip else {"maxnreg": 64}
"""Most of a thread of this kernel: without a limit it takes 74, and an SM has one program instead of two."""


def rms_norm_gradient(
    to_out: Tensor, x: Tensor, weight: Tensor, scales: Tensor, added: float, *, trained: bool,
    beside: Tensor | None = None, dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    """The gradient of `x`, which is contiguous, with the gradient `beside` that it has from elsewhere; the same in
    `dtype`; and, if it is trained, the gradient of `weight`."""
    size, rows = x.shape[-1], x.numel() // x.shape[-1]
    tile = _tile(size)
    programs = triton.cdiv(rows, tile["ROWS"])
    programs = min(PROGRAMS, programs) if trained else programs
    to_x = torch.empty_like(x)
    cast = to_x if dtype in (None, x.dtype) else torch.empty_like(x, dtype=dtype)
    sums = torch.empty(programs if trained else 0, size, dtype=torch.float32, device=x.device)
    _rms_norm_gradient[(programs,)](
        to_out.contiguous(), to_out if beside is None else beside.contiguous(), x, weight, scales, to_x, cast, sums,
        rows, ADDED=added, ADD=beside is not None, CAST=cast is not to_x, TRAINED=trained, **tile,
        **REGISTERS,
    )  # fmt: skip
    return to_x, cast, sums.sum(0).to(weight.dtype) if trained else None


@triton.jit
def _add(x, y, out, y_stride, SIZE: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = at < SIZE
    total = tl.load(x + row * SIZE + at, mask=real, other=0.0).to(tl.float32)
    total += tl.load(y + row * y_stride + at, mask=real, other=0.0).to(tl.float32)
    tl.store(out + row * SIZE + at, total.to(out.dtype.element_ty), mask=real)


def add(x: Tensor, y: Tensor) -> Tensor:
    """x + y in the dtype of x, which is contiguous. torch's kernel for two dtypes loads one number at a time."""
    size, rows = x.shape[-1], x.numel() // x.shape[-1]
    y = _rows(y)
    out = torch.empty_like(x)
    block = min(1024, triton.next_power_of_2(size))
    _add[(rows, triton.cdiv(size, block))](x, y, out, y.stride(0), SIZE=size, BLOCK=block, num_warps=4)
    return out


def _rows(x: Tensor) -> Tensor:
    """As a matrix whose rows may be parts of longer ones; the numbers of a row are next to each other."""
    rows = x.reshape(-1, x.shape[-1])
    return rows if rows.stride(-1) == 1 else rows.contiguous()


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
    gate, up = _rows(gate), _rows(up)
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
    to_out, gate, up = _rows(to_out), _rows(gate), _rows(up)
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
