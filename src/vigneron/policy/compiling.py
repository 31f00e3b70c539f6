"""torch.compile where it pays: on a CUDA device that has Triton, for functions and layers whose shapes repeat."""

from collections.abc import Callable
from functools import cache, wraps
from importlib.util import find_spec
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

Function = TypeVar("Function", bound=Callable[..., Any])

_state = {"enabled": False}


def can_compile(device: torch.device) -> bool:
    return device.type == "cuda" and has_triton()


@cache
def has_triton() -> bool:
    return find_spec("triton") is not None


def set_compiling(enabled: bool) -> None:
    """Whether `compiled_on_gpu` functions are compiled from now on: a run's choice (`model.compile`)."""
    _state["enabled"] = enabled
    if enabled:
        import torch._dynamo

        # Layers share their code, and have a compiled form for sampling, for training and for the reference.
        torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)


def compiled_on_gpu(function: Function) -> Function:
    """The function, compiled when compiling is on and its first argument is on a CUDA device."""
    compiled: Any = None

    @wraps(function)
    def choose(first: Tensor, *rest: Any) -> Any:
        nonlocal compiled
        if not _state["enabled"] or not can_compile(first.device) or torch.compiler.is_compiling():
            return function(first, *rest)
        if compiled is None:  # not before: torch.compile imports the compiler, which takes seconds
            compiled = torch.compile(function)
        return compiled(first, *rest)

    return choose  # type: ignore[return-value]


def compile_layers(model: Any) -> None:
    """Each decoder layer by itself: they share one compiled graph, which takes seconds where the whole takes minutes.

    In place, and without a wrapper: names of weights stay.
    """
    for layer in decoder_layers(model):
        layer.compile()


def decoder_layers(model: Any) -> list[nn.Module]:
    count = getattr(model.config, "num_hidden_layers", None)
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return list(module)
    return []
