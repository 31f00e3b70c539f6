"""Attention with what a model's layers add to it: a window, a cap on the scores, sinks.

transformers passes queries, keys and values, and what a layer adds, to a registered attention function. It attends
causally, in rows of one sequence each: packed samples are unpacked before and packed again afterwards. The rows of
local layers that are long enough have a mask.

    window of W    a token sees itself and the W − 1 tokens before it
    chunks of C    a token sees those before it in its own chunk (Llama 4)
    cap c          scores become c · tanh(score / c) (Gemma 2)
    sink s         exp(s) is added to the softmax's denominator: attention to nothing (gpt-oss)
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

NAME = "vigneron"
LOCAL_LAYERS = ("sliding_attention", "chunked_attention")


class Unsupported(Exception):
    """The model needs something that a faster way of computing it does not support."""


@dataclass(frozen=True)
class LocalAttention:
    """What a local layer's tokens see: a sliding window, or chunks."""

    size: int
    chunked: bool = False

    def sees(self, query: Tensor, key: Tensor) -> Tensor:
        """Whether the token at position `query` sees the one at `key`, which is not after it."""
        return query // self.size == key // self.size if self.chunked else query - key < self.size

    def first(self, position: Tensor) -> Tensor:
        """The first position that the token at `position` sees."""
        return position // self.size * self.size if self.chunked else (position - self.size + 1).clamp(min=0)


def text_config(model: Any) -> Any:
    """The config of the language model, inside that of a model with encoders."""
    return model.config.get_text_config()


def local_attention(config: Any) -> LocalAttention | None:
    """What the model's local layers see; None if it has none."""
    kinds = getattr(config, "layer_types", None)
    window, chunk = (getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size"))
    if chunk and kinds and "chunked_attention" in kinds:
        return LocalAttention(chunk, chunked=True)
    if not window or (kinds and "sliding_attention" not in kinds):
        return None
    return LocalAttention(window)


def may_have_windows(config: Any) -> bool:
    """Whether a key of the config may be a window. Asked of models that compute attention by themselves: test passes do
    not see their windows."""
    return any("window" in name and isinstance(value, int) and value > 0 for name, value in vars(config).items())


def is_local(module: Any, sliding_window: int | None) -> bool:
    """Whether an attention module is a local layer's. Some pass their window, others only have a kind of layer."""
    if sliding_window is not None:
        if local_attention(module.config) != LocalAttention(sliding_window):
            raise Unsupported("windows of several sizes")
        return True
    kinds, layer = getattr(module.config, "layer_types", None), getattr(module, "layer_idx", None)
    if kinds and layer is not None:
        return kinds[layer] in LOCAL_LAYERS
    return local_attention(module.config) is not None


def local_mask(
    local: LocalAttention | None, positions_RS: Int[Tensor, "R S"], allowed_R1SS: Bool[Tensor, "R 1 S S"] | None
) -> Bool[Tensor, "R 1 S S"] | None:
    """The mask of local layers; None if rows are too short to reach the end of a window."""
    width = positions_RS.shape[1]
    if local is None or width <= local.size:
        return None
    if allowed_R1SS is not None:  # positions are those in a token's own sequence
        return allowed_R1SS & local.sees(positions_RS[:, None, :, None], positions_RS[:, None, None, :])
    at_S = torch.arange(width, device=positions_RS.device)
    return ((at_S[:, None] >= at_S) & local.sees(at_S[:, None], at_S))[None, None]


class Unpacked(NamedTuple):
    """Packed samples in rows of their own, a prompt and one of its completions each, which attention sees. Everything
    else in a layer is computed once for a prompt that several samples share, and without padding."""

    token_BW: Int[Tensor, "B W"]
    """The packed token at each place of the rows."""
    place_N: Int[Tensor, " N"]
    """The place, in B · W, of each packed token: the first one of a shared prompt's."""
    prompt_M: Int[Tensor, " M"]
    """The packed tokens that have several places."""
    places_MG: Int[Tensor, "M G"]
    """All places of each of them; −1 where it has fewer."""

    @classmethod
    def of_one(cls, row_1S: Int[Tensor, "1 S"]) -> "Unpacked":
        """One sample without padding."""
        token_1S = torch.arange(row_1S.shape[1], device=row_1S.device)[None]
        return cls(token_1S, token_1S[0], token_1S[0, :0], token_1S[:, :0].t())


class _Spread(torch.autograd.Function):
    """Packed tokens to rows. Gradients are gathered, not scattered: the same sums in every run."""

    @staticmethod
    def forward(ctx: Any, x_N: Tensor, at: Unpacked) -> Tensor:
        ctx.at = at
        return x_N.index_select(0, at.token_BW.flatten()).unflatten(0, at.token_BW.shape)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        at, grad = ctx.at, grads[0].flatten(0, 1)
        out = grad.index_select(0, at.place_N)
        if at.prompt_M.numel():
            every = grad.index_select(0, at.places_MG.clamp(min=0).flatten()).unflatten(0, at.places_MG.shape)
            real = (at.places_MG >= 0).view(*at.places_MG.shape, *[1] * (grad.dim() - 1))
            precise = torch.promote_types(grad.dtype, torch.float32)
            total = torch.where(real, every, 0).sum(1, dtype=precise)
            out = out.index_copy(0, at.prompt_M, total.to(grad.dtype))
        return out, None


class _Collect(torch.autograd.Function):
    """Rows to packed tokens."""

    @staticmethod
    def forward(ctx: Any, rows_BW: Tensor, at: Unpacked) -> Tensor:
        ctx.at = at
        return rows_BW.flatten(0, 1).index_select(0, at.place_N)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        at, grad = ctx.at, grads[0]
        blank = grad.new_zeros(at.token_BW.numel(), *grad.shape[1:])
        return blank.index_copy(0, at.place_N, grad).unflatten(0, at.token_BW.shape), None


_callers: list[Any] | None = None


@contextmanager
def recorded_callers() -> Iterator[list[Any]]:
    """The modules that call `attention` with packed samples meanwhile, in a test pass."""
    global _callers
    _callers = []
    try:
        yield _callers
    finally:
        _callers = None


def attention(
    module: nn.Module,
    query_RHSD: Float[Tensor, "R H S D"],
    key_RKSD: Float[Tensor, "R K S D"],
    value_RKSE: Float[Tensor, "R K S E"],
    attention_mask: Tensor | None = None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    local_allowed: Tensor | None = None,
    unpacked: Unpacked | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention of a training pass, causal without a mask. `local_allowed` is the mask of local layers. `unpacked`: of
    one row of packed samples, each in a row of its own."""
    if others.get("position_bias") is not None:
        raise Unsupported("a position bias")
    if _callers is not None and unpacked is not None:
        _callers.append(module)
    if is_local(module, sliding_window) and local_allowed is not None:
        attention_mask = local_allowed
    query, key, value = query_RHSD, key_RKSD, value_RKSE
    if unpacked is not None:
        query, key, value = (_unpack(part, unpacked) for part in (query, key, value))
    if softcap is None and s_aux is None:
        out, _ = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, is_causal=others.get("is_causal")
        )
    else:
        scale = scaling if scaling is not None else query.shape[-1] ** -0.5
        out = capped_attention(query, key, value, attention_mask, scale, softcap, s_aux).transpose(1, 2)
    return (out if unpacked is None else _Collect.apply(out, unpacked)[None]), None


def _unpack(x_1HND: Tensor, at: Unpacked) -> Tensor:
    """[1, heads, tokens, size] to [rows, heads, width, size], in the dtype that attention has."""
    device = x_1HND.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x_1HND.dtype
    rows: Tensor = _Spread.apply(x_1HND[0].transpose(0, 1).to(dtype), at)
    return rows.transpose(1, 2)


def capped_attention(
    query_RHSD: Float[Tensor, "R H S D"],
    key_RKLD: Float[Tensor, "R K L D"],
    value_RKLE: Float[Tensor, "R K L E"],
    allowed: Bool[Tensor, "R 1 S L"] | None,
    scale: float,
    softcap: float | None,
    sinks_H: Float[Tensor, " H"] | None,
) -> Float[Tensor, "R H S E"]:
    """Attention with a cap or sinks, which SDPA does not know: in float32, with all scores in memory."""
    dtype = torch.float64 if query_RHSD.dtype == torch.float64 else torch.float32
    heads, key_heads = query_RHSD.shape[1], key_RKLD.shape[1]
    if allowed is None:
        width = query_RHSD.shape[2]
        allowed = torch.ones(width, width, dtype=torch.bool, device=query_RHSD.device).tril()[None, None]
    with torch.autocast(query_RHSD.device.type, enabled=False):
        query_RKGSD = query_RHSD.to(dtype).unflatten(1, (key_heads, heads // key_heads))
        scores = query_RKGSD @ key_RKLD.to(dtype).transpose(-1, -2)[:, :, None] * scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        scores = scores.masked_fill(~allowed[:, :, None], -torch.inf)
        if sinks_H is None:
            weights = scores.softmax(-1)
        else:
            sinks = sinks_H.to(dtype).view(key_heads, -1, 1, 1).expand(*scores.shape[:-1], 1)
            weights = torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]
        out = weights @ value_RKLE.to(dtype)[:, :, None]
    return out.flatten(1, 2).to(value_RKLE.dtype)


# What tests of a few tokens cannot reach, with the values that they can.
SMALL = {"sliding_window": 4, "attention_chunk_size": 4, "attn_logit_softcapping": 1.0}


@contextmanager
def shrunken_windows(*models: Any, **others: float) -> Iterator[None]:
    """Make windows and caps so small that a pass over a dozen tokens depends on them, and `others` as small as given.
    They are attributes of configs and of modules, read at each pass."""
    small_values = {**SMALL, **others}
    holders = {id(holder): holder for model in models for holder in (text_config(model), *model.modules())}
    before: list[tuple[Any, str, Any]] = []
    for holder in holders.values():
        for name, small in small_values.items():
            value = vars(holder).get(name)
            if isinstance(value, int | float) and not isinstance(value, bool) and value > small:
                before.append((holder, name, value))
                setattr(holder, name, type(value)(small))
    try:
        yield
    finally:
        for holder, name, value in before:
            setattr(holder, name, value)


AttentionInterface.register(NAME, attention)
