"""Attention with a static key/value cache in which every row has its own length.

transformers passes queries, keys and values to a registered attention function; this one keeps the cache itself. A
row's token at position p is in slot p, so rows may have any length, a finished row is overwritten by a new prompt, and
addresses never change (a CUDA graph stays valid). `policy.attention` has the windows, caps and sinks.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from vigneron.policy.attention import Unsupported, capped_attention, is_local, local_attention, local_mask
from vigneron.policy.compiling import has_triton
from vigneron.rollout.engine.decode_tiles import Tiles, choose_tiles, shared_memory

NAME = "vigneron_cached"

# Bytes of scores that a prefill with a cap or sinks keeps in memory, unless a single prompt needs more.
SCORE_BYTES = 2**28


@dataclass(frozen=True)
class Layer:
    """An attention module with the shape of its cache: key heads, and sizes of keys and values."""

    module: Any
    heads: int
    key_size: int
    value_size: int

    @classmethod
    def of(cls, module: Any, key_RKSD: Tensor, value_RKSE: Tensor) -> "Layer":
        return cls(module, key_RKSD.shape[1], key_RKSD.shape[3], value_RKSE.shape[3])


@dataclass(frozen=True)
class AttentionModifiers:
    """What a layer adds to attention: its window, the cap on its scores, its sinks."""

    local: Any = None
    softcap: float | None = None
    sinks_H: Tensor | None = None

    @property
    def plain(self) -> bool:
        """Whether SDPA computes it."""
        return self.softcap is None and self.sinks_H is None


def cached_attention(
    module: Any,
    query_RHSD: Float[Tensor, "R H S D"],
    key_RKSD: Float[Tensor, "R K S D"],
    value_RKSE: Float[Tensor, "R K S E"],
    attention_mask: Tensor | None = None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    cache_rows: Int[Tensor, " R"] | None = None,
    cache_slots: Int[Tensor, " R"] | None = None,
    discover: list[Layer] | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention that updates the cache: with `cache_slots`, one new token per row at its slot; with `cache_rows`, whole
    prompts for those rows. `discover` collects the calling modules.
    """
    if others.get("position_bias") is not None:
        raise Unsupported("a position bias")
    if discover is not None:
        discover.append(Layer.of(module, key_RKSD, value_RKSE))
        return value_RKSE.repeat_interleave(query_RHSD.shape[1] // key_RKSD.shape[1], 1).transpose(1, 2), None
    local = local_attention(module.config) if is_local(module, sliding_window) else None
    modifiers = AttentionModifiers(local, softcap, s_aux)
    dtype = module.vigneron_keys.dtype
    query, key, value = query_RHSD.to(dtype), key_RKSD.to(dtype), value_RKSE.to(dtype)
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    write_cache(module, key, value, cache_rows, cache_slots)
    if cache_slots is not None:
        keys, values = module.vigneron_keys, module.vigneron_values
        return attend_to_cache(query[:, :, 0], keys, values, cache_slots, scale, modifiers)[:, None], None
    return attend_to_prompt(query, key, value, scale, modifiers).transpose(1, 2), None


def write_cache(module: Any, key: Tensor, value: Tensor, rows: Tensor | None, slots: Tensor | None) -> None:
    """Write one token per row at its slot, or whole prompts into `rows`."""
    keys, values = module.vigneron_keys, module.vigneron_values
    if slots is not None:
        at = torch.arange(key.shape[0], device=key.device)
        keys[at, :, slots] = key[:, :, 0]
        values[at, :, slots] = value[:, :, 0]
    else:
        keys[rows, :, : key.shape[2]] = key
        values[rows, :, : key.shape[2]] = value


def attend_to_prompt(query: Tensor, key: Tensor, value: Tensor, scale: float, modifiers: AttentionModifiers) -> Tensor:
    """Causal attention of whole prompts, from slot 0."""
    count, heads, width, _ = query.shape
    at_1S = torch.arange(width, device=query.device)[None]
    allowed = local_mask(modifiers.local, at_1S, None)
    if modifiers.plain:
        return scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=allowed,
            is_causal=allowed is None,
            scale=scale,
            enable_gqa=heads != key.shape[1],
        )
    size = max(1, SCORE_BYTES // (4 * heads * width * width))
    parts = [
        capped_attention(
            query[i : i + size], key[i : i + size], value[i : i + size], allowed, scale, *_capped(modifiers)
        )
        for i in range(0, count, size)
    ]
    return torch.cat(parts)


def attend_to_cache(
    query_RHD: Float[Tensor, "R H D"],
    keys: Float[Tensor, "C K S D"],
    values: Float[Tensor, "C K S E"],
    slots_R: Int[Tensor, " R"],
    scale: float,
    modifiers: AttentionModifiers,
) -> Float[Tensor, "R H E"]:
    """Attention of each row's query over its slots up to its own, or over a local layer's last ones; the rows are the
    first R of the cache."""
    first_R = (
        modifiers.local.first(slots_R) if modifiers.local is not None and keys.shape[2] > modifiers.local.size else None
    )
    if (tiles := kernel_tiles(query_RHD, keys, values)) is not None:
        from vigneron.rollout.engine.decode_kernel import decode_attention

        return decode_attention(query_RHD, keys, values, slots_R, scale, tiles, first_R, *_capped(modifiers))
    count, heads, _ = query_RHD.shape
    at_S = torch.arange(keys.shape[2], device=slots_R.device)
    seen_R11S = (at_S <= slots_R[:, None])[:, None, None]
    if first_R is not None:
        seen_R11S &= (at_S >= first_R[:, None])[:, None, None]
    if not modifiers.plain:
        out = capped_attention(
            query_RHD[:, :, None], keys[:count], values[:count], seen_R11S, scale, *_capped(modifiers)
        )
        return out[:, :, 0]
    # Queries that share a key head take the place of the sequence dimension, so that no key is repeated.
    query_RKGD = query_RHD.unflatten(1, (keys.shape[1], heads // keys.shape[1]))
    out = scaled_dot_product_attention(query_RKGD, keys[:count], values[:count], attn_mask=seen_R11S, scale=scale)
    return out.flatten(1, 2)


def kernel_tiles(query_RHD: Tensor, keys: Tensor, values: Tensor) -> Tiles | None:
    """The sizes with which the decode kernel computes this; None: it cannot. It sums in float32, has one size for keys
    and values, and needs shared memory."""
    if not query_RHD.is_cuda or query_RHD.dtype == torch.float64 or keys.shape != values.shape or not has_triton():
        return None
    _, heads, size = query_RHD.shape
    return choose_tiles(heads // keys.shape[1], size, keys.dtype.itemsize, shared_memory(query_RHD.device))


def _capped(modifiers: AttentionModifiers) -> tuple[float | None, Tensor | None]:
    return modifiers.softcap, modifiers.sinks_H


AttentionInterface.register(NAME, cached_attention)
