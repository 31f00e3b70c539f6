"""torch.compile for functions and decoder layers, and Triton kernels: on a CUDA device with Triton."""

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, wraps
from importlib.util import find_spec
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from vigneron.policy.bundled import cache_folder
from vigneron.timing import phase_hooks

Function = TypeVar("Function", bound=Callable[..., Any])

CACHE = "TORCHINDUCTOR_CACHE_DIR"

_state = {"enabled": False, "interpreted": False}
_hooks: list[tuple[Callable[..., None], Callable[..., None]]] = []


def can_compile(device: torch.device) -> bool:
    return device.type == "cuda" and has_triton()


@cache
def has_triton() -> bool:
    return find_spec("triton") is not None


def can_run_kernels(device: torch.device) -> bool:
    """Whether our Triton kernels run on tensors of this device."""
    return has_triton() and (device.type == "cuda" or _state["interpreted"])


@contextmanager
def interpreted_kernels(on: bool = True) -> Iterator[None]:
    """For tests: run the kernels on a CPU, by Triton's interpreter. TRITON_INTERPRET=1 must be set before their modules
    are imported."""
    before, _state["interpreted"] = _state["interpreted"], on
    try:
        yield
    finally:
        _state["interpreted"] = before


def set_compiling(enabled: bool) -> None:
    """Turn the compilation of `compiled_on_gpu` functions on or off (`model.compile`)."""
    _state["enabled"] = enabled
    if enabled:
        import torch._dynamo

        # Layers share one code object, compiled separately for sampling, training and the reference.
        torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)
        keep_compiled_code()
        report_compiling()


def keep_compiled_code() -> None:
    """Let torch keep compiled code in Vigneron's cache: the next run of the same shapes does not compile them again.

    Not if the user has chosen a folder, nor if the cache cannot be written: torch then uses a temporary one.
    """
    if os.environ.get(CACHE) not in (None, _torch_default()):
        return
    folder = cache_folder() / "compiled"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return
    os.environ[CACHE] = str(folder.resolve())


def _torch_default() -> str | None:
    """The folder that torch writes into the environment when its compiler is imported."""
    module = sys.modules.get("torch._inductor.runtime.cache_dir_utils")
    return None if module is None else os.path.abspath(module.default_cache_dir())


def report_compiling() -> None:
    """Report the phase `compile` while torch compiles, within whatever phase it happens."""
    from torch._dynamo.callback import callback_handler

    while _hooks:  # of an earlier run of this process
        begin, end = _hooks.pop()
        with suppress(ValueError):  # torch.compiler.reset() has removed them
            callback_handler.remove_start_callback(begin)
            callback_handler.remove_end_callback(end)
    begin, end = phase_hooks("compile")
    callback_handler.register_start_callback(begin)
    callback_handler.register_end_callback(end)
    _hooks.append((begin, end))


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
    whole model takes minutes. The names of weights do not change. Left as they are: layers with experts, whose products
    in float32 do not compile, and DeepSeek's latent attention, whose compiled gradients were wrong with torch 2.11."""
    for layer in decoder_layers(model):
        parts = {name.rpartition(".")[2] for name, _ in layer.named_modules()}
        if not parts & {"experts", "kv_a_proj_with_mqa"}:
            layer.compile()


def decoder_layers(model: Any) -> list[nn.Module]:
    """The first module list with as many entries as the config has layers; empty if there is none."""
    count = getattr(model.config.get_text_config(), "num_hidden_layers", None)
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return list(module)
    return []
