"""Attention with a static key/value cache in which every row has its own length.

transformers passes queries, keys and values to a registered attention function; this one keeps the cache itself.
Addresses never change, so a CUDA graph stays valid. A cache is [rows, key heads, slots, size]: a row's token at
position p is in slot p, rows may have any length, and a finished row is overwritten by a new prompt. Or, where the
decode kernel runs, it is paged, [pages, key heads, PAGE, size]: a row has the pages of its prompt, which the rows of a
group share, and then its own. `policy.attention` has the windows, caps and sinks.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from vigneron.policy.attention import Unsupported, capped_attention, is_local, local_attention, local_mask
from vigneron.policy.compiling import can_run_kernels
from vigneron.rollout.engine.decode_tiles import PAGE, Slots, Tiles, choose_tiles, shared_memory

NAME = "vigneron_cached"
T = TypeVar("T")

# Bytes of scores that a prefill with a cap or sinks keeps in memory, unless a single row needs more; of a chunk also
# bytes of the keys and values that are copied.
SCORE_BYTES = 2**28


@dataclass(frozen=True)
class Layer:
    """An attention module with the shape of its cache: key heads, and sizes of keys and values. `sharing` query heads
    have one key head."""

    module: Any
    heads: int
    key_size: int
    value_size: int
    sharing: int = 1

    @classmethod
    def of(cls, module: Any, query_RHSD: Tensor, key_RKSD: Tensor, value_RKSE: Tensor) -> "Layer":
        heads = key_RKSD.shape[1]
        return cls(module, heads, key_RKSD.shape[3], value_RKSE.shape[3], query_RHSD.shape[1] // heads)


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


@dataclass(frozen=True, eq=False)
class Chunk:
    """Tokens that rows with a cache read in one pass of `width` tokens a row: row `row_N[n]` reads `length_N[n]` of
    them, from slot `first_N[n]` on; the others are padding. No row has more than `past` tokens before. In a paged cache
    those of its prompt, `start_N[n]`, are not among them, and `pages_NM` are the pages that the chunk reads or writes.
    """

    row_N: Tensor
    first_N: Tensor
    length_N: Tensor
    past: int
    width: int
    start_N: Tensor | None = None
    pages_NM: Tensor | None = None
    _kept: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False)
    """What all layers of a pass use."""

    def keep(self, name: Hashable, make: Callable[[], T]) -> T:
        """`make()`, called once for all layers."""
        if name not in self._kept:
            self._kept[name] = make()
        kept: T = self._kept[name]
        return kept

    def positions(self) -> Int[Tensor, "N S"]:
        """The slot of each token. Padding has that of the row's last token, so that no row gets longer by it."""
        at_S = torch.arange(self.width, device=self.first_N.device)
        return self.first_N[:, None] + torch.minimum(at_S, self.length_N[:, None] - 1)

    def parts(self, size: int) -> list["Chunk"]:
        """Of so many rows each."""
        return self.keep(
            ("parts", size), lambda: [self._part(slice(i, i + size)) for i in range(0, len(self.row_N), size)]
        )

    def _part(self, rows: slice) -> "Chunk":
        paged = (None if each is None else each[rows] for each in (self.start_N, self.pages_NM))
        return Chunk(self.row_N[rows], self.first_N[rows], self.length_N[rows], self.past, self.width, *paged)


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
    cache_rows: Int[Tensor, " R"] | Int[Tensor, "R M"] | None = None,
    cache_first: int = 0,
    cache_slots: Slots | None = None,
    cache_chunk: Chunk | None = None,
    discover: list[Layer] | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention that updates the cache: with `cache_slots`, one new token per row at its slot; with `cache_chunk`,
    several behind those that rows have; with `cache_rows`, the tokens of prompts for those rows, or the pages of each
    in a paged cache, from slot `cache_first` on. `discover` collects the calling modules.
    """
    if others.get("position_bias") is not None:
        raise Unsupported("a position bias")
    if discover is not None:
        discover.append(Layer.of(module, query_RHSD, key_RKSD, value_RKSE))
        return value_RKSE.repeat_interleave(query_RHSD.shape[1] // key_RKSD.shape[1], 1).transpose(1, 2), None
    local = local_attention(module.config) if is_local(module, sliding_window) else None
    modifiers = AttentionModifiers(local, softcap, s_aux)
    cache = module.vigneron_cache
    dtype = cache[0].dtype
    query, key, value = query_RHSD.to(dtype), key_RKSD.to(dtype), value_RKSE.to(dtype)
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    if cache_slots is not None:
        new = query[:, :, 0], key[:, :, 0], value[:, :, 0]
        return attend_to_cache(*new, cache, cache_slots, scale, modifiers)[:, None], None
    if cache_chunk is not None:
        return attend_to_chunk(query, key, value, cache, cache_chunk, scale, modifiers).transpose(1, 2), None
    write_prompts(cache, key, value, cache_rows, cache_first)
    if cache_first:  # the tokens before these are in the cache
        key, value = (read_prompts(part, cache_rows, cache_first + key.shape[2]) for part in cache)
    return attend_to_prompt(query, key, value, scale, modifiers).transpose(1, 2), None


Cache = tuple[Tensor, Tensor]
"""Keys and values of a layer, [rows, key heads, slots, size] or [pages, key heads, PAGE, size] each."""


def write_prompts(cache: Cache, key: Tensor, value: Tensor, rows: Tensor | None, first: int = 0) -> None:
    """Write the tokens of prompts into `rows`, or into the pages of each, from slot `first` on."""
    for part, new in zip(cache, (key, value), strict=True):
        if rows is not None and rows.ndim == 2:
            slot_S = torch.arange(first, first + new.shape[2], device=new.device)
            part[rows[:, slot_S // PAGE], :, slot_S % PAGE] = new.transpose(1, 2)
        else:
            part[rows, :, first : first + new.shape[2]] = new


def read_prompts(part: Tensor, rows: Tensor | None, end: int) -> Tensor:
    """The first `end` slots of `rows`, or of the pages of each."""
    if rows is not None and rows.ndim == 2:
        return in_order(part, rows)[:, :, :end]
    return part[rows, :, :end]


def in_order(part: Tensor, pages_NM: Int[Tensor, "N M"]) -> Float[Tensor, "N K S D"]:
    """A copy of the keys or values in these pages, one page after another."""
    return part[pages_NM].transpose(1, 2).flatten(2, 3)


def write_tokens(cache: Cache, key_RKD: Tensor, value_RKE: Tensor, slots_R: Tensor) -> None:
    """Write one token per row at its slot."""
    at = torch.arange(len(slots_R), device=slots_R.device)
    for part, new in zip(cache, (key_RKD, value_RKE), strict=True):
        part[at, :, slots_R] = new


def write_chunk(cache: Cache, key_NKSD: Tensor, value_NKSE: Tensor, chunk: Chunk) -> None:
    """Write the tokens of a chunk. Padding goes behind them, where the row's next tokens overwrite it, or into the last
    slot, which no chunk reaches: a reply leaves room for another token."""

    def places() -> tuple[Tensor, Tensor]:
        slot_NS = chunk.first_N[:, None] + torch.arange(chunk.width, device=chunk.first_N.device)
        if chunk.pages_NM is None or chunk.start_N is None:
            return chunk.row_N[:, None], slot_NS.clamp(max=cache[0].shape[2] - 1)
        behind_N1 = (own_page(chunk.start_N) * PAGE - chunk.start_N)[:, None]  # the prompt's last page may not be full
        slot_NS = (slot_NS + behind_N1).clamp(max=chunk.pages_NM.shape[1] * PAGE - 1)
        return chunk.pages_NM.gather(1, slot_NS // PAGE), slot_NS % PAGE

    place_NS, slot_NS = chunk.keep(("places", cache[0].shape[2]), places)
    for part, new in zip(cache, (key_NKSD, value_NKSE), strict=True):
        part[place_NS, :, slot_NS] = new.transpose(1, 2)


def own_page(start: Tensor) -> Tensor:
    """The first page of a row behind a prompt of `start` tokens."""
    return (start + PAGE - 1) // PAGE


def attend_to_prompt(query: Tensor, key: Tensor, value: Tensor, scale: float, modifiers: AttentionModifiers) -> Tensor:
    """Causal attention of the last tokens of prompts, in slots from 0."""
    count, heads, width, _ = query.shape
    before = key.shape[2] - width
    allowed = _prompt_mask(modifiers.local, before, width, query.device)
    size = count if modifiers.plain else max(1, SCORE_BYTES // (4 * heads * width * key.shape[2]))
    parts = [
        _attend(query[i : i + size], key[i : i + size], value[i : i + size], allowed, scale, modifiers)
        for i in range(0, count, size)
    ]
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def _attend(
    query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None, scale: float, modifiers: AttentionModifiers
) -> Tensor:
    """Attention by a mask; causal without one."""
    if not modifiers.plain:
        return capped_attention(query, key, value, allowed, scale, *_capped(modifiers))
    sharing = query.shape[1] // key.shape[1]
    if allowed is None:
        return scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=sharing > 1)
    return _attend_folded(query, key, value, _folded_mask(allowed, sharing), scale)


def _folded_mask(allowed: Tensor, sharing: int) -> Tensor:
    """The mask of `_attend_folded`."""
    return allowed.repeat(1, 1, sharing, 1)


def _attend_folded(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Queries that share a key head follow each other in the sequence dimension: with a mask and `enable_gqa` SDPA has
    no kernel on a GPU, repeats the keys and writes all scores."""
    sharing = query.shape[1] // key.shape[1]
    folded = query.unflatten(1, (key.shape[1], sharing)).flatten(2, 3)
    out = scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=scale)
    return out.unflatten(2, (sharing, query.shape[2])).flatten(1, 2)


def _prompt_mask(local: Any, before: int, width: int, device: torch.device) -> Tensor | None:
    """What the last `width` of `before` + `width` tokens see; None: all tokens from the first to their own."""
    if not before:
        return local_mask(local, torch.arange(width, device=device)[None], None)
    query, key = (
        torch.arange(before, before + width, device=device)[:, None],
        torch.arange(before + width, device=device),
    )
    allowed = key <= query
    return (allowed if local is None else allowed & local.sees(query, key))[None, None]


def attend_to_chunk(
    query_NHSD: Float[Tensor, "N H S D"],
    key_NKSD: Float[Tensor, "N K S D"],
    value_NKSE: Float[Tensor, "N K S E"],
    cache: Cache,
    chunk: Chunk,
    scale: float,
    modifiers: AttentionModifiers,
) -> Float[Tensor, "N H S E"]:
    """Write a chunk's keys and values, and let each of its tokens attend to its row's slots up to its own."""
    write_chunk(cache, key_NKSD, value_NKSE, chunk)
    _, heads, width, _ = query_NHSD.shape
    end = chunk.past + width if chunk.pages_NM is None else chunk.pages_NM.shape[1] * PAGE
    sharing = heads // cache[0].shape[1]
    copied = sum(part[0, :, 0].numel() * part.itemsize for part in cache)  # bytes of a slot
    scores = 2 * sharing * width if modifiers.plain else 4 * heads * width  # of the mask alone, or of all scores
    size = max(1, SCORE_BYTES // (end * max(scores, copied)))
    outs = []
    for rows, query in zip(chunk.parts(size), query_NHSD.split(size), strict=True):
        pages_NM = rows.pages_NM
        key, value = (part[rows.row_N, :, :end] if pages_NM is None else in_order(part, pages_NM) for part in cache)
        kind = key.shape[2], modifiers.local
        allowed = rows.keep(kind, partial(_chunk_mask, rows, *kind))
        if modifiers.plain:
            mask = rows.keep((*kind, sharing), partial(_folded_mask, allowed, sharing))
            outs.append(_attend_folded(query, key, value, mask, scale))
        else:
            outs.append(capped_attention(query, key, value, allowed, scale, *_capped(modifiers)))
    return torch.cat(outs) if len(outs) > 1 else outs[0]


def _chunk_mask(chunk: Chunk, keys: int, local: Any) -> Tensor:
    """What each token of a chunk sees [N, 1, S, keys]: the row's slots, or those of its pages."""
    query_NS1 = chunk.positions()[:, :, None]
    key_N1L = torch.arange(keys, device=query_NS1.device)[None, None]
    if chunk.start_N is not None:
        start_N11 = chunk.start_N[:, None, None]
        own_N11 = own_page(start_N11) * PAGE
        of_prompt = torch.where(key_N1L < start_N11, key_N1L, query_NS1.max() + 1)  # what follows the prompt is hidden
        key_N1L = torch.where(key_N1L < own_N11, of_prompt, key_N1L - own_N11 + start_N11)
    seen = key_N1L <= query_NS1
    return (seen if local is None else seen & local.sees(query_NS1, key_N1L))[:, None]


def attend_to_cache(
    query_RHD: Float[Tensor, "R H D"],
    key_RKD: Float[Tensor, "R K D"],
    value_RKE: Float[Tensor, "R K E"],
    cache: Cache,
    slots: Slots,
    scale: float,
    modifiers: AttentionModifiers,
) -> Float[Tensor, "R H E"]:
    """Write each row's new key and value, and attend to its slots up to its own, or to a local layer's last ones. The
    rows are the first R of the cache, if it is not paged."""
    keys, values = cache
    slots_R = slots.slot_R
    first_R = modifiers.local.first(slots_R) if modifiers.local is not None else None
    if slots.pages_RN is not None:
        from vigneron.rollout.engine.decode_kernel import decode_attention

        new = query_RHD, key_RKD, value_RKE
        tiles = kernel_tiles(query_RHD, Layer.of(None, *(part[:, :, None] for part in new)))
        assert tiles is not None
        return decode_attention(*new, cache, slots, scale, tiles, first_R, *_capped(modifiers))
    write_tokens(cache, key_RKD, value_RKE, slots_R)
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


def kernel_tiles(like: Tensor, layer: Layer) -> Tiles | None:
    """The sizes with which the decode kernel computes a layer, for tensors like this; None: it cannot. It sums in
    float32, has one size for keys and values, and needs shared memory."""
    if like.dtype == torch.float64 or layer.key_size != layer.value_size or not can_run_kernels(like.device):
        return None
    return choose_tiles(layer.sharing, layer.key_size, like.dtype.itemsize, shared_memory(like.device))


def _capped(modifiers: AttentionModifiers) -> tuple[float | None, Tensor | None]:
    return modifiers.softcap, modifiers.sinks_H


AttentionInterface.register(NAME, cached_attention)
