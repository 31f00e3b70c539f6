"""A model's logits: by the head as one matrix where it is one, and the scale or cap that some models apply."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vigneron.policy.attention import text_config
from vigneron.policy.fused_head import Head, matmul_fp32


def precision(
    device: torch.device, compute_dtype: torch.dtype, *, keeps_casts: bool = True
) -> AbstractContextManager[Any]:
    """Autocast for matrix products; weights, sums and norms keep their dtype. `keeps_casts`: what float32 weights are
    cast to is kept until the end, all of it, for weights that are used again."""
    if compute_dtype != torch.bfloat16:
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=keeps_casts)


def model_logits(causal: Any, hidden_NH: Float[Tensor, "*N H"], compute_dtype: torch.dtype) -> Float[Tensor, "*N V"]:
    """A model's logits, computed in `compute_dtype` and accumulated in float32 (float64 for a model in float64)."""
    head = causal.get_output_embeddings()
    if type(head) is nn.Linear:
        logits = linear_logits(head, compute_dtype, hidden_NH)
    else:
        with precision(hidden_NH.device, compute_dtype):
            logits = head(hidden_NH)
        logits = logits if logits.dtype == torch.float64 else logits.float()
    return apply_logit_shape(logits, text_config(causal))


def linear_logits(
    head: nn.Linear, compute_dtype: torch.dtype, hidden_NH: Float[Tensor, "*N H"]
) -> Float[Tensor, "*N V"]:
    """The result of a linear head, accumulated in float32."""
    dtype = compute_dtype if compute_dtype == torch.bfloat16 else torch.promote_types(head.weight.dtype, compute_dtype)
    flat_NV = matmul_fp32(hidden_NH.flatten(0, -2).to(dtype), head.weight.to(dtype).t())
    return (flat_NV if head.bias is None else flat_NV + head.bias).unflatten(0, hidden_NH.shape[:-1])


def plain_head(causal: Any, compute_dtype: torch.dtype) -> Head | None:
    """The output embeddings as one matrix; None with a bias, an adapter, or scaled or capped logits."""
    head = causal.get_output_embeddings()
    shaped = any(getattr(text_config(causal), name, None) for name in LOGIT_SHAPES)
    if type(head) is not nn.Linear or head.bias is not None or shaped:
        return None
    return Head(head.weight, compute_dtype)


LOGIT_SHAPES = ("logit_scale", "logits_scaling", "final_logit_softcapping")


def apply_logit_shape(logits: Tensor, config: Any) -> Tensor:
    """The scale or soft cap that some models apply to their logits."""
    if scale := getattr(config, "logit_scale", None):
        logits = logits * scale
    if divisor := getattr(config, "logits_scaling", None):
        logits = logits / divisor
    if cap := getattr(config, "final_logit_softcapping", None):
        logits = cap * torch.tanh(logits / cap)
    return logits
