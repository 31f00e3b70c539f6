"""Activation checkpointing: a decoder layer keeps its input, and runs again in the backward pass.

transformers checkpoints in training mode only, which turns on dropout and the noise of routers: a policy would be
trained as another one than it samples with. Here layers checkpoint in evaluation mode.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from vigneron.errors import UserError
from vigneron.policy.compiling import decoder_layers


def checkpoint_layers(model: Any) -> None:
    """Let each decoder layer checkpoint its activations, in place. The names of weights do not change."""
    layers = decoder_layers(model)
    if not layers:
        name = model.config.model_type
        raise UserError(f"model.activation_checkpointing: '{name}' has no list of decoder layers: set it to false")
    for layer in layers:
        kind: Any = type(layer)
        layer.__class__ = _checkpointed(kind)


@cache
def _checkpointed(kind: Any) -> Any:
    """A subclass of a layer's class that checkpoints its calls."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        once = super(checkpointed, self).__call__
        if not torch.is_grad_enabled():
            return once(*args, **kwargs)
        configs = {id(module.config): module.config for module in self.modules() if hasattr(module, "config")}
        attentions = [(config, config._attn_implementation) for config in configs.values()]

        def run(*args: Any, **kwargs: Any) -> Any:
            with _attention_functions(attentions):
                return once(*args, **kwargs)

        return checkpoint(run, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)

    checkpointed: Any = type(kind.__name__, (kind,), {"__call__": call, "__module__": kind.__module__})
    return checkpointed


@contextmanager
def _attention_functions(attentions: Sequence[tuple[Any, str]]) -> Iterator[None]:
    """Those of the forward pass: the backward pass runs when `Policy.trunk` has put transformers' own ones back."""
    before = [(config, config._attn_implementation) for config, _ in attentions]
    for config, name in attentions:
        config._attn_implementation = name
    try:
        yield
    finally:
        for config, name in before:
            config._attn_implementation = name
