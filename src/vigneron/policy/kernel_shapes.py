"""Stand-ins for the Triton kernels that make results of the same shapes and compute nothing: for passes on fake
tensors, by which memory is planned (`pass_memory`). They need neither Triton nor a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_active = False


@contextmanager
def shapes_only() -> Iterator[None]:
    """Use the stand-ins meanwhile, on tensors that have no values. torch's attention is replaced by its name: a
    `TorchFunctionMode` would be off while layers run again in a backward pass."""
    global _active
    before, _active = _active, True
    attention = functional.scaled_dot_product_attention
    functional.scaled_dot_product_attention = flash_attention
    try:
        yield
    finally:
        _active = before
        functional.scaled_dot_product_attention = attention


def is_shapes_only() -> bool:
    return _active


# The functions of `layer_kernels`.


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, added: float, dtype: torch.dtype, scales: Tensor | None = None
) -> Tensor:
    return torch.empty(x.shape, dtype=dtype, device=x.device)


def rms_norm_gradient(
    to_out: Tensor, x: Tensor, weight: Tensor, scales: Tensor, added: float, *, trained: bool,
    beside: Tensor | None = None, dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    to_out, beside = to_out.contiguous(), None if beside is None else beside.contiguous()
    to_x = torch.empty_like(x)
    cast = to_x if dtype in (None, x.dtype) else torch.empty_like(x, dtype=dtype)
    return to_x, cast, torch.empty_like(weight) if trained else None


def add_norm(
    x: Tensor, y: Tensor, weight: Tensor, eps: float, added: float, dtype: torch.dtype, scales: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    return add(x, y), rms_norm(x, weight, eps, added, dtype, scales)


def add(x: Tensor, y: Tensor) -> Tensor:
    return torch.empty_like(x)


def rotate(
    query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, dtype: torch.dtype, *, back: bool = False
) -> tuple[Tensor, Tensor]:
    turned = [torch.empty_like(part.transpose(1, 2).contiguous(), dtype=dtype) for part in (query, key)]
    return turned[0].transpose(1, 2), turned[1].transpose(1, 2)


def gated(gate: Tensor, up: Tensor, activation: str) -> Tensor:
    return torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)


def gated_gradient(to_out: Tensor, gate: Tensor, up: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    to_out = to_out.contiguous()
    return gated(gate, up, activation), gated(gate, up, activation)


# The functions of `head_kernels`.


def statistics(logits_NV: Tensor, ids_N: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    count = logits_NV.shape[0]
    return torch.empty(count), torch.empty(count), torch.empty(count)


def gradient(
    logits_NV: Tensor, ids_N: Tensor, temperature: float, own: tuple[Tensor, ...], dtype: torch.dtype
) -> Tensor:
    return torch.empty(logits_NV.shape, dtype=dtype, device=logits_NV.device)


# Attention: on a CPU, torch chooses other kernels, which keep other tensors.


class _Flash(torch.autograd.Function):
    """Keeps queries, keys, values, the result, and a number for each query."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        rows, heads, tokens, _ = query.shape
        out = torch.empty(rows, tokens, heads, value.shape[-1], dtype=query.dtype, device=query.device).transpose(1, 2)
        sums = torch.empty(rows, heads, tokens, dtype=torch.float32, device=query.device)
        ctx.save_for_backward(query, key, value, out, sums)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        query, key, value, *_ = ctx.saved_tensors
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def flash_attention(query: Tensor, key: Tensor, value: Tensor, *masks: Any, **options: Any) -> Any:
    return _Flash.apply(query, key, value)
