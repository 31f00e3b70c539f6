"""torch.compile for functions and decoder layers on a CUDA device with Triton."""

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
    """Turn the compilation of `compiled_on_gpu` functions on or off (`model.compile`)."""
    _state["enabled"] = enabled
    if enabled:
        import torch._dynamo

        # Layers share one code object, compiled separately for sampling, training and the reference.
        torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)


def compiled_on_gpu(function: Function) -> Function:
    """A decorator: uses the compiled function if compilation is on and the first argument is on a CUDA device."""
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
    """Compile each decoder layer separately, in place: layers share one compiled graph, which takes seconds, where the
    whole model takes minutes. The names of weights do not change."""
    for layer in decoder_layers(model):
        layer.compile()


def decoder_layers(model: Any) -> list[nn.Module]:
    """The first module list with as many entries as the config has layers; empty if there is none."""
    count = getattr(model.config.get_text_config(), "num_hidden_layers", None)
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return list(module)
    return []
