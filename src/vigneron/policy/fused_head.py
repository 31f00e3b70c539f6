"""The fused LM head at completion positions: log-prob of the chosen token, entropy, and the exact KL to a reference.

Tokens are processed in chunks and logits are recomputed in the backward pass, so that [B, T, V] is never materialized.
The gradient with respect to the logits z (p = softmax z) is computed in closed form instead of by autograd:

    ∂ log p_c / ∂z_v = 1[v = c] − p_v
    ∂ H / ∂z_v       = −p_v (log p_v + H)                  H  = −Σ p log p
    ∂ KL / ∂z_v      = p_v (log p_v − log q_v − KL)        KL = Σ p (log p − log q), to a reference q
    ∂ KL / ∂z_v      = p_v − q_v                           KL = Σ q (log q − log p), from another policy q
    ∂ D_β / ∂z_v     = p_v (log p_v − log m_v − KL(p ‖ m)) / β    between the two (`core/kl.py: divergence`)
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from vigneron.core.kl import mixture_ratios
from vigneron.policy import kernel_shapes
from vigneron.policy.compiling import can_run_kernels, compiled_on_gpu

HEAD_CHUNK = 1024


@dataclass(frozen=True)
class Head:
    """A linear head without bias: logits = states · weightᵀ, computed in `compute_dtype`, accumulated in float32."""

    weight_VH: Float[Tensor, "V H"]
    compute_dtype: torch.dtype


class TokenStatistics(NamedTuple):
    chosen_N: Float[Tensor, " N"]
    entropy_N: Float[Tensor, " N"]
    exact_kl_N: Float[Tensor, " N"] | None


def token_statistics(
    head: Head,
    hidden_NH: Float[Tensor, "N H"],
    ids_N: Int[Tensor, " N"],
    temperature: float,
    other: Head | None = None,
    other_NH: Float[Tensor, "N G"] | None = None,
    *,
    beta: float = 1.0,
) -> TokenStatistics:
    """Statistics of softmax(logits / temperature); with `other` and its states, also D_β between the two: KL(this ‖
    other) at 1, KL(other ‖ this) at 0. Of vocabularies of different sizes, the tokens that both have are compared."""
    other_VH = other.weight_VH if other is not None else None
    if other_VH is not None and len(other_VH) > len(head.weight_VH):
        other_VH = other_VH[: len(head.weight_VH)]
    chosen_N, entropy_N, kl_N = _Statistics.apply(
        hidden_NH, head.weight_VH, ids_N, temperature, head.compute_dtype, other_NH, other_VH, beta
    )
    return TokenStatistics(chosen_N, entropy_N, kl_N if other is not None else None)


def matmul_fp32(left: Float[Tensor, "N K"], right: Float[Tensor, "K M"]) -> Float[Tensor, "N M"]:
    """A matrix product with a float32 result for bfloat16 inputs: a logit of 20 in bfloat16 is off by up to 0.06."""
    return _MatmulFp32.apply(left, right) if torch.is_grad_enabled() else _matmul_fp32(left, right)


class _MatmulFp32(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor) -> Tensor:
        ctx.save_for_backward(left, right)
        return _matmul_fp32(left, right)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        left, right = ctx.saved_tensors
        grad = grads[0].to(left.dtype)
        return grad @ right.t(), left.t() @ grad


def _matmul_fp32(left: Tensor, right: Tensor) -> Tensor:
    if left.dtype in (torch.bfloat16, torch.float16):
        if kernel_shapes.is_shapes_only():
            return torch.empty(left.shape[0], right.shape[1], device=left.device)
        if left.is_cuda:
            return torch.mm(left, right, out_dtype=torch.float32)
        return left.float() @ right.float()
    return left @ right


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left · right, in place: a product of its own would have the size of the head."""
    accumulates = left.dtype == torch.bfloat16 and total.dtype == torch.float32
    if accumulates and left.is_cuda:
        torch.addmm(total, left, right, out_dtype=torch.float32, out=total)
    elif not (accumulates and kernel_shapes.is_shapes_only()):
        total += _matmul_fp32(left, right)


class _Statistics(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_NH: Tensor,
        weight_VH: Tensor,
        ids_N: Tensor,
        temperature: float,
        dtype: torch.dtype,
        other_NH: Tensor | None,
        other_VH: Tensor | None,
        beta: float,
    ) -> tuple[Tensor, ...]:
        dtype = dtype if dtype == torch.bfloat16 else torch.promote_types(weight_VH.dtype, dtype)
        hidden_NH, cast_VH = hidden_NH.to(dtype), weight_VH.to(dtype)
        if other_NH is not None and other_VH is not None:
            other_NH, other_VH = other_NH.to(dtype), other_VH.to(dtype)
        parts = []
        for at in _chunks(len(ids_N)):
            logits_NV = others_NV = None  # frees those of the last chunk
            logits_NV = matmul_fp32(hidden_NH[at], cast_VH.t())
            others_NV = matmul_fp32(other_NH[at], other_VH.t()) if other_NH is not None else None  # type: ignore[union-attr]
            if others_NV is None and _has_kernels(logits_NV):
                parts.append(head_kernels().statistics(logits_NV, ids_N[at], temperature))
            else:
                parts.append(_forward_statistics(logits_NV, ids_N[at], temperature, others_NV, repr(beta)))
        statistics = [torch.cat(values) for values in zip(*parts, strict=True)]
        chosen_N, entropy_N, log_sum_N = statistics[:3]
        kl_N, other_log_sum_N = statistics[3:] if other_NH is not None else (torch.zeros_like(chosen_N), None)
        # A single chunk of logits is small enough to keep; several are recomputed.
        kept_NV = logits_NV if len(parts) == 1 else None
        ctx.save_for_backward(
            hidden_NH, weight_VH, ids_N, entropy_N, log_sum_N, kl_N, other_NH, other_VH, other_log_sum_N, kept_NV
        )
        ctx.temperature, ctx.beta = temperature, beta
        ctx.set_materialize_grads(False)
        return chosen_N, entropy_N, kl_N

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden_NH, weight_VH, ids_N, entropy_N, log_sum_N, kl_N, other_NH, other_VH, other_log_sum_N, kept_NV = (
            ctx.saved_tensors
        )
        to_chosen_N, to_entropy_N, to_kl_N = (g if g is not None else torch.zeros_like(entropy_N) for g in grads)
        cast_VH = weight_VH.to(hidden_NH.dtype)
        to_hidden_NH = torch.empty_like(hidden_NH)
        # Sums in bfloat16 would lose small contributions of a chunk.
        sum_dtype = torch.float32 if weight_VH.dtype == torch.bfloat16 else weight_VH.dtype
        to_weight_VH = torch.zeros_like(weight_VH, dtype=sum_dtype) if ctx.needs_input_grad[1] else None
        for at in _chunks(len(ids_N)):
            logits_NV = kept_NV if kept_NV is not None else matmul_fp32(hidden_NH[at], cast_VH.t())
            others: tuple[Tensor, ...] = ()
            if other_NH is not None and grads[2] is not None:
                others = (matmul_fp32(other_NH[at], other_VH.t()), other_log_sum_N[at], kl_N[at], to_kl_N[at])
            own = (log_sum_N[at], entropy_N[at], to_chosen_N[at], to_entropy_N[at])
            given = logits_NV, ids_N[at], ctx.temperature, own
            if not others and _has_kernels(logits_NV):
                to_logits_NV = head_kernels().gradient(*given, hidden_NH.dtype)
            else:
                to_logits_NV = _logit_gradient(*given, others, repr(ctx.beta), hidden_NH.dtype)
            to_hidden_NH[at] = to_logits_NV @ cast_VH
            if to_weight_VH is not None:
                _add_product(to_weight_VH, to_logits_NV.t(), hidden_NH[at])
            del logits_NV, to_logits_NV  # before the next chunk's
        to_weight_VH = to_weight_VH.to(weight_VH.dtype) if to_weight_VH is not None else None
        return to_hidden_NH, to_weight_VH, None, None, None, None, None, None


def _has_kernels(logits_NV: Tensor) -> bool:
    can_run = can_run_kernels(logits_NV.device) or kernel_shapes.is_shapes_only()
    return can_run and logits_NV.dtype == torch.float32


def head_kernels() -> Any:
    if kernel_shapes.is_shapes_only():
        return kernel_shapes
    from vigneron.policy import head_kernels

    return head_kernels


def _chunks(count: int) -> list[slice]:
    return [slice(start, start + HEAD_CHUNK) for start in range(0, count, HEAD_CHUNK)] or [slice(0, 0)]


@compiled_on_gpu
def _forward_statistics(
    logits_NV: Tensor, ids_N: Tensor, temperature: float, others_NV: Tensor | None, beta_text: str
) -> tuple[Tensor, ...]:
    """Chosen log-prob, entropy, log Σ exp; with a reference also KL and the reference's log Σ exp."""
    z_NV = logits_NV / temperature
    log_sum_N = z_NV.logsumexp(-1)
    logprobs_NV = z_NV - log_sum_N[:, None]
    p_NV = logprobs_NV.exp()
    chosen_N = logprobs_NV.gather(-1, ids_N[:, None]).squeeze(-1)
    entropy_N = -(p_NV * logprobs_NV).sum(-1)
    if others_NV is None:
        return chosen_N, entropy_N, log_sum_N
    beta = float(beta_text)  # to torch.compile a text is a constant, and a number that changes is not
    y_NV = others_NV / temperature
    other_log_sum_N = y_NV.logsumexp(-1)
    others_logprobs_NV = y_NV - other_log_sum_N[:, None]
    if y_NV.shape[-1] < z_NV.shape[-1]:
        logprobs_NV = logprobs_NV[:, : y_NV.shape[-1]].log_softmax(-1)
        p_NV = logprobs_NV.exp()
    if beta == 0.0:
        kl_N = (others_logprobs_NV.exp() * (others_logprobs_NV - logprobs_NV)).sum(-1)
    elif beta == 1.0:
        kl_N = (p_NV * (logprobs_NV - others_logprobs_NV)).sum(-1)
    else:
        to_other_NV, to_own_NV = mixture_ratios(others_logprobs_NV - logprobs_NV, beta)
        kl_N = -(others_logprobs_NV.exp() * to_other_NV).sum(-1) / (1 - beta) - (p_NV * to_own_NV).sum(-1) / beta
    return chosen_N, entropy_N, log_sum_N, kl_N, other_log_sum_N


@compiled_on_gpu
def _logit_gradient(
    logits_NV: Tensor,
    ids_N: Tensor,
    temperature: float,
    own: tuple[Tensor, ...],
    others: tuple[Tensor, ...],
    beta_text: str,
    dtype: torch.dtype,
) -> Tensor:
    log_sum_N, entropy_N, to_chosen_N, to_entropy_N = (values[:, None] for values in own)
    logprobs_NV = logits_NV / temperature - log_sum_N
    factor_NV = -to_chosen_N - to_entropy_N * (logprobs_NV + entropy_N)
    is_chosen_NV = torch.arange(logits_NV.shape[-1], device=logits_NV.device) == ids_N[:, None]
    added_NV = torch.where(is_chosen_NV, to_chosen_N, 0.0)
    if others:
        others_NV, (other_log_sum_N, kl_N, to_kl_N) = others[0], (values[:, None] for values in others[1:])
        others_logprobs_NV = others_NV / temperature - other_log_sum_N
        beta = float(beta_text)
        missing = logits_NV.shape[-1] - others_NV.shape[-1]
        if missing or beta not in (0.0, 1.0):
            shared_NV = logprobs_NV[:, : others_NV.shape[-1]].log_softmax(-1) if missing else logprobs_NV
            to_shared_NV = _divergence_gradient(shared_NV, others_logprobs_NV, beta)
            added_NV = added_NV + to_kl_N * pad(to_shared_NV, (0, missing))
        elif beta == 0.0:
            factor_NV = factor_NV + to_kl_N
            added_NV = added_NV - to_kl_N * others_logprobs_NV.exp()
        else:
            factor_NV = factor_NV + to_kl_N * (logprobs_NV - others_logprobs_NV - kl_N)
    to_logits_NV = logprobs_NV.exp() * factor_NV + added_NV
    return (to_logits_NV / temperature).to(dtype)


def _divergence_gradient(logprobs_NV: Tensor, others_NV: Tensor, beta: float) -> Tensor:
    """∂D_β/∂z for each token of both vocabularies."""
    p_NV = logprobs_NV.exp()
    if beta == 0.0:
        return p_NV - others_NV.exp()
    log_ratio_NV = logprobs_NV - others_NV if beta == 1.0 else -mixture_ratios(others_NV - logprobs_NV, beta)[1]
    return p_NV * (log_ratio_NV - (p_NV * log_ratio_NV).sum(-1, keepdim=True)) / beta
