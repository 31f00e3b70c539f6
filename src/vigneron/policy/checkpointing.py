"""Activation checkpointing: a decoder layer keeps its input, and runs again in the backward pass.

transformers checkpoints in training mode only, which turns on dropout and the noise of routers: a policy would be
trained as another one than it samples with. Here layers checkpoint in evaluation mode.
"""

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
        run = super(checkpointed, self).__call__
        if not torch.is_grad_enabled():
            return run(*args, **kwargs)
        return checkpoint(run, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)

    checkpointed: Any = type(kind.__name__, (kind,), {"__call__": call, "__module__": kind.__module__})
    return checkpointed
