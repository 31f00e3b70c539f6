"""What a decoder layer does between its matrix products, with gradients: on a CUDA device with Triton.

Each keeps for the backward pass what its formula needs and nothing else: autograd would keep every step of it.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from vigneron.policy import kernel_shapes
from vigneron.policy.activations import Activation


def kernels() -> Any:
    """Those of `layer_kernels`, or functions that only make results of the same shapes."""
    if kernel_shapes.is_shapes_only():
        return kernel_shapes
    from vigneron.policy import layer_kernels

    return layer_kernels


class RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, added: float, dtype: torch.dtype) -> Tensor:
        x = x.contiguous()
        scales = torch.empty(x.numel() // x.shape[-1], dtype=torch.float32, device=x.device)
        ctx.save_for_backward(x, weight, scales)
        ctx.added = added
        return kernels().rms_norm(x, weight, eps, added, dtype, scales)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scales = ctx.saved_tensors
        to_x, _, to_weight = kernels().rms_norm_gradient(
            grads[0], x, weight, scales, ctx.added, trained=ctx.needs_input_grad[1]
        )
        return to_x, to_weight, None, None, None


def fused_norm(x: Tensor, weight: Tensor, eps: float, added: float, dtype: torch.dtype) -> Tensor:
    """x / √(mean x² + eps) · (weight + added) over the last dimension, in `dtype`."""
    if not torch.is_grad_enabled():
        return kernels().rms_norm(x, weight, eps, added, dtype)
    out: Tensor = RmsNorm.apply(x, weight, eps, added, dtype)
    return out


class AddNorm(torch.autograd.Function):
    """The sum and its norm. The gradients of both are added by the kernel of the norm's gradient."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, y: Tensor | None, weight: Tensor, eps: float, added: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        scales = torch.empty(x.numel() // x.shape[-1], dtype=torch.float32, device=x.device)
        if y is None:
            total, out = x, kernels().rms_norm(x, weight, eps, added, dtype, scales)
        else:
            total, out = kernels().add_norm(x, y, weight, eps, added, dtype, scales)
        ctx.save_for_backward(total, weight, scales)
        ctx.added, ctx.dtype = added, None if y is None else y.dtype
        return total, out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        total, weight, scales = ctx.saved_tensors
        options = {"trained": ctx.needs_input_grad[2], "beside": grads[0], "dtype": ctx.dtype}
        to_x, to_y, to_weight = kernels().rms_norm_gradient(grads[1], total, weight, scales, ctx.added, **options)
        return to_x, None if ctx.dtype is None else to_y, to_weight, None, None, None


def fused_add_norm(
    x: Tensor, y: Tensor | None, weight: Tensor, eps: float, added: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """x + y in the dtype of x, or x itself, and `fused_norm` of it."""
    x = x.contiguous()
    if torch.is_grad_enabled():
        both: tuple[Tensor, Tensor] = AddNorm.apply(x, y, weight, eps, added, dtype)
        return both
    if y is None:
        return x, kernels().rms_norm(x, weight, eps, added, dtype)
    return kernels().add_norm(x, y, weight, eps, added, dtype)


class Add(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.dtype = y.dtype
        return kernels().add(x, y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        return grads[0], grads[0].to(ctx.dtype)


def fused_add(x: Tensor, y: Tensor) -> Tensor:
    """x + y in the dtype of x."""
    x = x.contiguous()
    out: Tensor = Add.apply(x, y) if torch.is_grad_enabled() else kernels().add(x, y)
    return out


class Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(cos, sin)
        ctx.dtypes = query.dtype, key.dtype
        return kernels().rotate(query, key, cos, sin, torch.bfloat16)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        to_query, to_key = kernels().rotate(grads[0], grads[1], cos, sin, torch.bfloat16, back=True)
        return to_query.to(ctx.dtypes[0]), to_key.to(ctx.dtypes[1]), None, None


def fused_rotary(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotary positions of queries and keys [R, H, S, D], in bfloat16."""
    if not torch.is_grad_enabled():
        return kernels().rotate(query, key, cos, sin, torch.bfloat16)
    turned: tuple[Tensor, Tensor] = Rotate.apply(query, key, cos, sin)
    return turned


class Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, activation: Activation) -> Tensor:
        ctx.save_for_backward(gate, up)
        ctx.activation = activation
        return kernels().gated(gate, up, activation)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        gate, up = ctx.saved_tensors
        return *kernels().gated_gradient(grads[0], gate, up, ctx.activation), None


def fused_gated(gate: Tensor, up: Tensor, activation: Activation) -> Tensor:
    """activation(gate) · up."""
    if not torch.is_grad_enabled():
        return kernels().gated(gate, up, activation)
    out: Tensor = Gated.apply(gate, up, activation)
    return out


class Adapted(torch.autograd.Function):
    """y + scale · (x Aᵀ) Bᵀ with y = x Wᵀ + b, in bfloat16. W and b are frozen; without W, y is given."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, given: Tensor | None, weight: Tensor | None, bias: Tensor | None, first: Tensor,
        second: Tensor, scale: float,
    ) -> Tensor:  # fmt: skip
        ctx.dtype, ctx.scale = x.dtype, scale
        x = x.to(torch.bfloat16)
        flat, first_RK, second_OR = x.reshape(-1, x.shape[-1]), first.to(x.dtype), second.to(x.dtype)
        inner = flat @ first_RK.t()
        if weight is not None:
            y = torch.nn.functional.linear(flat, weight, None if bias is None else bias.to(x.dtype))
        else:
            assert given is not None
            y = given.reshape(-1, given.shape[-1]).to(x.dtype, copy=True)
        y.addmm_(inner, second_OR.t(), alpha=scale)
        ctx.save_for_backward(x, inner, weight, first, second)
        return y.view(*x.shape[:-1], y.shape[-1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, inner, weight, first, second = ctx.saved_tensors
        grad = grads[0].reshape(-1, grads[0].shape[-1]).to(x.dtype)
        flat = x.reshape(-1, x.shape[-1])
        to_inner = (grad @ second.to(x.dtype)) * ctx.scale
        to_second = (grad.t() @ inner) * ctx.scale
        to_first = to_inner.t() @ flat
        to_x = None
        if ctx.needs_input_grad[0]:
            if weight is not None:
                to_x = grad @ weight
                to_x.addmm_(to_inner, first.to(x.dtype))
            else:
                to_x = to_inner @ first.to(x.dtype)
            to_x = to_x.view(x.shape).to(ctx.dtype)
        to_given = grads[0] if ctx.needs_input_grad[1] else None
        return to_x, to_given, None, None, to_first.to(first.dtype), to_second.to(second.dtype), None


def fused_adapted(
    x: Tensor, given: Tensor | None, weight: Tensor | None, bias: Tensor | None, first: Tensor, second: Tensor,
    scale: float,
) -> Tensor:  # fmt: skip
    """x Wᵀ + b + scale · (x Aᵀ) Bᵀ; without W, `given` instead of the first two."""
    out: Tensor = Adapted.apply(x, given, weight, bias, first, second, scale)
    return out
