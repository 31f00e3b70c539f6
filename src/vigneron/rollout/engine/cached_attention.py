"""Attention with a static key/value cache in which every row has its own length.

transformers passes queries, keys and values to a registered attention function; this one keeps the cache itself. A
row's token at position p is in slot p, so rows may have any length, a finished row is overwritten by a new prompt, and
addresses never change (a CUDA graph stays valid).
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from vigneron.policy.compiling import has_triton

NAME = "vigneron_cached"

# Arguments of some models' attention that this one does not support.
UNSUPPORTED_ARGUMENTS = ("sliding_window", "softcap", "s_aux", "position_bias")


class Unsupported(Exception):
    """The model's attention needs something that the engine does not support."""


def cached_attention(
    module: nn.Module,
    query_RHSD: Float[Tensor, "R H S D"],
    key_RKSD: Float[Tensor, "R K S D"],
    value_RKSD: Float[Tensor, "R K S D"],
    attention_mask: Tensor | None = None,
    *,
    scaling: float | None = None,
    cache_rows: Int[Tensor, " R"] | None = None,
    cache_slots: Int[Tensor, " R"] | None = None,
    discover: list[tuple[nn.Module, int, int]] | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention that updates the cache: with `cache_slots`, one new token per row at its slot; with `cache_rows`, whole
    prompts for those rows. `discover` collects the calling modules.
    """
    for name in UNSUPPORTED_ARGUMENTS:
        if others.get(name) is not None:
            raise Unsupported(name)
    if discover is not None:
        discover.append((module, key_RKSD.shape[1], key_RKSD.shape[3]))
        return query_RHSD.transpose(1, 2), None
    keys: Any = module.vigneron_keys
    values: Any = module.vigneron_values
    query, key, value = query_RHSD.to(keys.dtype), key_RKSD.to(keys.dtype), value_RKSD.to(keys.dtype)
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    if cache_slots is not None:
        rows = torch.arange(query.shape[0], device=query.device)
        keys[rows, :, cache_slots] = key[:, :, 0]
        values[rows, :, cache_slots] = value[:, :, 0]
        return attend_to_cache(query[:, :, 0], keys, values, cache_slots, scale)[:, None], None
    width = key.shape[2]
    keys[cache_rows, :, :width] = key
    values[cache_rows, :, :width] = value
    out = scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=scale, enable_gqa=query.shape[1] != key.shape[1]
    )
    return out.transpose(1, 2), None


def attend_to_cache(
    query_RHD: Float[Tensor, "R H D"],
    keys: Float[Tensor, "C K S D"],
    values: Float[Tensor, "C K S D"],
    slots_R: Int[Tensor, " R"],
    scale: float,
) -> Float[Tensor, "R H D"]:
    """Attention of each row's query over its slots 0 … slot; the rows are the first R of the cache."""
    if query_RHD.is_cuda and query_RHD.dtype != torch.float64 and has_triton():  # the kernel sums in float32
        from vigneron.rollout.engine.decode_kernel import decode_attention

        return decode_attention(query_RHD, keys, values, slots_R, scale)
    count, heads, _ = query_RHD.shape
    # Queries that share a key head take the place of the sequence dimension, so that no key is repeated.
    query_RKGD = query_RHD.unflatten(1, (keys.shape[1], heads // keys.shape[1]))
    seen_R11S = (torch.arange(keys.shape[2], device=slots_R.device) <= slots_R[:, None])[:, None, None]
    out = scaled_dot_product_attention(query_RKGD, keys[:count], values[:count], attn_mask=seen_R11S, scale=scale)
    return out.flatten(1, 2)


AttentionInterface.register(NAME, cached_attention)
