"""How weights are held: matrices and embeddings in bfloat16, the rest in float32.

Most checkpoints have bfloat16 numbers: held so, nothing is lost. Under autocast a matrix gives the same products, which
rounds it at every call; an embedding returns float32. Products in float32 upcast one matrix at a time.
"""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from transformers.pytorch_utils import Conv1D

# peft imports bitsandbytes, which says on some CPUs that a kernel of a hub is missing.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)

MATRICES = (nn.Linear, Conv1D)
PRODUCTS = (functional.linear, torch.addmm, torch.mm, torch.matmul, torch.Tensor.matmul)


def is_quantised(module: nn.Module) -> bool:
    """Whether this is a linear layer of bitsandbytes with 4-bit weights. The library is not imported for it."""
    library = sys.modules.get("bitsandbytes")
    return library is not None and isinstance(module, library.nn.Linear4bit)


def has_low_precision(model: nn.Module) -> bool:
    """Whether some weights are held in bfloat16 or 4 bits."""
    bfloat16 = any(weight.dtype == torch.bfloat16 for weight in model.parameters())
    return bfloat16 or any(is_quantised(module) for module in model.modules())


@torch.no_grad()
def hold_in_bfloat16(model: nn.Module, *, rounding: bool) -> int:
    """Cast float32 matrices and embeddings. Without `rounding`, only those whose numbers are bfloat16 numbers: the
    number of bytes that more would have saved is returned."""
    left = 0
    for weight in castable(model):
        if weight.dtype == torch.float32:
            if rounding or _is_bfloat16(weight):
                weight.data = weight.data.bfloat16()
            else:
                left += 2 * weight.numel()
    for module in model.modules():
        in_bfloat16 = isinstance(module, nn.Embedding) and module.weight.dtype == torch.bfloat16
        if in_bfloat16 and _to_float32 not in module._forward_hooks.values():
            module.register_forward_hook(_to_float32)
    return left


@torch.no_grad()
def round_matrices(model: nn.Module) -> None:
    """Cast frozen float32 matrices of linear layers, but a head that is tied to an embedding."""
    for weight in linear_weights(model):
        if not weight.requires_grad and weight.dtype == torch.float32:
            weight.data = weight.data.bfloat16()


def linear_weights(model: nn.Module) -> list[nn.Parameter]:
    """Weights and biases of linear layers, but a head that is tied to an embedding."""
    embedded = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    linear = (module for module in model.modules() if isinstance(module, MATRICES))
    weights = {id(weight): weight for module in linear for weight in module.parameters(recurse=False)}
    return [weight for weight in weights.values() if id(weight) not in embedded]


def castable(model: nn.Module) -> list[Tensor]:
    """Weights that may be held in bfloat16: matrices of linear layers and embeddings, but adapters. An embedding that
    computes with its weights, as Gemma's scaled one, stays, and so does a head that is tied to it."""
    own = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding) and not _is_plain(m)}
    modules = [
        module
        for name, module in model.named_modules()
        if isinstance(module, (*MATRICES, nn.Embedding)) and not is_quantised(module) and "lora_" not in name
    ]
    weights: dict[int, Any] = {id(m.weight): m.weight for m in modules if id(m.weight) not in own}
    return [weight for weight in weights.values() if min(weight.shape) > 1]  # not the head of a reward model


def _is_plain(embedding: nn.Embedding) -> bool:
    return type(embedding).forward is nn.Embedding.forward


def _is_bfloat16(weight: Tensor) -> bool:
    """Whether all numbers are bfloat16 numbers: the lower half of their bits is 0."""
    return all(not (rows.view(torch.int32) & 0xFFFF).any() for rows in weight.data.split(1024))


def _to_float32(module: Any, inputs: Any, output: Tensor) -> Tensor:
    if not (torch.is_grad_enabled() and module.weight.requires_grad):
        return output.float()
    return _Lookup.apply(module.weight, inputs[0], -1 if module.padding_idx is None else module.padding_idx)


class _Lookup(torch.autograd.Function):
    """Rows of an embedding in float32. Their gradients are summed over tokens in float32 before they are rounded."""

    @staticmethod
    def forward(ctx: Any, weight_VH: Tensor, ids: Tensor, padding: int) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.rows, ctx.padding = len(weight_VH), padding
        return functional.embedding(ids, weight_VH).float()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (ids,) = ctx.saved_tensors
        to_weight_VH = torch.ops.aten.embedding_dense_backward(grads[0], ids, ctx.rows, ctx.padding, False)
        return to_weight_VH, None, None


def built_in_bfloat16(kind: type) -> Any:
    """A subclass of a transformers model that is built with its matrices and embeddings in bfloat16. transformers loads
    a tensor in the dtype of its place: they are never in memory in float32."""

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        kind.__init__(self, *args, **kwargs)  # type: ignore[misc]
        for weight in castable(self):
            weight.data = weight.data.bfloat16()

    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (kind,), {"__init__": init, **names})


@contextmanager
def float32_stand_ins(model: nn.Module) -> Iterator[None]:
    """Replace bfloat16 weights by float32 tensors of their shape that take no memory: peft gives an adapter its first
    numbers in the dtype of the layer, and its weights are float32."""
    with _quantised_in_float32(model), ExitStack() as stack:
        for weight in model.parameters():
            if weight.dtype == torch.bfloat16:
                stack.callback(setattr, weight, "data", weight.data)
                weight.data = torch.zeros((), device=weight.device).expand(weight.shape)
        yield


class _Upcast(TorchFunctionMode):
    """Products in float32 with weights in bfloat16, one at a time."""

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in PRODUCTS:
            args = [_float32(value) for value in args]
            kwargs = {name: _float32(value) for name, value in (kwargs or {}).items()}
        return func(*args, **(kwargs or {}))


def _float32(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype == torch.bfloat16 else value


@contextmanager
def upcast(model: nn.Module) -> Iterator[None]:
    """Compute in float32 with the weights that are held: exact, and slower."""
    with _quantised_in_float32(model), _Upcast():
        yield


@contextmanager
def _quantised_in_float32(model: nn.Module) -> Iterator[None]:
    with ExitStack() as stack:
        for module in model.modules():
            if is_quantised(module):
                stack.callback(setattr, module, "compute_dtype", module.compute_dtype)
                module.compute_dtype = torch.float32  # type: ignore[assignment]
        yield
