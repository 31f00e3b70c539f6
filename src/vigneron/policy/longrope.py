"""Rotary positions with two sets of frequencies (longrope: Phi-3 128k, Phi-4-mini): one for short sequences, one for
sequences longer than the model's original context.

transformers chooses by the largest position of a batch, so a sample's neighbours change it. Here each sequence chooses
for itself, and a sampled one by the length that it may reach: its prompt with `max_new_tokens`. Otherwise it would
change its frequencies while it is sampled, and be scored with others than it was sampled with.

A position of a long sequence is marked by adding `LONG` to it. Without marks, a row chooses by its largest position;
within `long_sequences`, every row is long.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

LONG = 2**24


@dataclass(frozen=True)
class LongRope:
    """Sequences of more than `switch` tokens are long. `margin`: tokens that a sampled completion may have."""

    switch: int
    margin: int = 0

    def offset(self, prompt: int, completion: int) -> int:
        """What is added to the positions of a sequence of so many tokens."""
        return LONG if prompt + max(completion, self.margin) > self.switch else 0

    def split(self, prompt: int, bundle: Sequence[int], widths: Sequence[int]) -> list[list[int]]:
        """The samples of one prompt, those of short sequences apart from those of long ones."""
        parts: dict[int, list[int]] = {}
        for i in bundle:
            parts.setdefault(self.offset(prompt, widths[i]), []).append(i)
        return list(parts.values())


_all_long = False


@contextmanager
def long_sequences() -> Iterator[None]:
    """All sequences of passes are long, for code that counts positions by itself (transformers' `generate`)."""
    global _all_long
    _all_long = True
    try:
        yield
    finally:
        _all_long = False


def install_longrope(model: nn.Module) -> LongRope | None:
    """Let the model's rotary modules choose by sequence, in place; None if it has one set of frequencies."""
    long_rope = None
    for module in model.modules():
        if getattr(module, "rope_type", None) == "longrope":
            kind: Any = type(module)
            module.__class__ = _by_sequence(kind)
            long_rope = LongRope(_switch(module))
    return long_rope


def _switch(module: Any) -> int:
    return int(module.config.rope_parameters["original_max_position_embeddings"])


@cache
def _by_sequence(kind: Any) -> Any:
    """A subclass of a rotary module's class that chooses by sequence."""
    if getattr(kind, "chooses_by_sequence", False):
        return kind
    plain = _without_choice(kind.forward)

    @torch.no_grad()
    def forward(self: Any, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        switch = _switch(self)
        marked_RS = position_ids >= LONG
        at_RS = position_ids - LONG * marked_RS
        own_RS = torch.where(marked_RS, 0, at_RS)
        long_RS = marked_RS | (own_RS.amax(-1, keepdim=True) >= switch) | _all_long
        short_at, long_at = torch.where(long_RS, 0, at_RS), torch.where(long_RS, at_RS, 0)
        if plain is not None:
            short = _with_frequencies(self, plain, self.original_inv_freq, x, short_at)
            long = _with_frequencies(self, plain, _long_frequencies(self, x.device), x, long_at)
        else:  # a module with a choice of its own: one more position makes it choose
            short = kind.forward(self, x, short_at)
            more = torch.cat([long_at, torch.full_like(long_at[:, :1], switch)], 1)
            long = tuple(part[:, :-1] for part in kind.forward(self, x, more))
        cos, sin = (torch.where(long_RS[..., None], b, a) for a, b in zip(short, long, strict=True))
        return cos, sin

    names = {"forward": forward, "chooses_by_sequence": True, "__module__": kind.__module__}
    return type(kind.__name__, (kind,), names)


def _without_choice(forward: Any) -> Callable[..., Any] | None:
    """A rotary module's forward pass below transformers' decorators; None if it does not simply use `inv_freq`."""
    inner = forward
    while hasattr(inner, "__wrapped__"):
        inner = inner.__wrapped__
    names = inner.__code__.co_names
    return inner if "inv_freq" in names and "rope_init_fn" not in names else None


def _with_frequencies(module: Any, forward: Callable[..., Any], inv_freq: Tensor, x: Tensor, at_RS: Tensor) -> Any:
    module.inv_freq = inv_freq.to(x.device)
    return forward(module, x, at_RS)


def _long_frequencies(module: Any, device: torch.device) -> Tensor:
    known: Tensor | None = getattr(module, "vigneron_long_inv_freq", None)
    if known is None or known.device != device:
        known, _ = ROPE_INIT_FUNCTIONS["longrope"](module.config, device, seq_len=_switch(module) + 1)
        module.vigneron_long_inv_freq = known
    return known
