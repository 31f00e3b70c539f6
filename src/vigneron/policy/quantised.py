"""Linear layers in 4 bits (NF4 with double quantisation, QLoRA, arXiv:2305.14314), by bitsandbytes."""

from collections.abc import Collection
from copy import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from vigneron.errors import UserError, first_line
from vigneron.policy.held_weights import is_quantised

WANTED = "model.weights: 4bit"
BLOCK = 64
"""Numbers that share a scale, which is bitsandbytes' default."""


def check_library(device: torch.device, what: str = WANTED) -> Any:
    """Import bitsandbytes and try it on the device. `what` needs it, and begins errors."""
    try:
        import bitsandbytes
    except ImportError as error:
        raise UserError(f"{what} needs bitsandbytes: pip install 'vigneron[quant]'") from error
    except Exception as error:  # a library that does not fit torch or CUDA can fail in any way
        raise UserError(f"{what} needs bitsandbytes, which cannot be imported: {first_line(error)}") from error
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"{what} is not supported on '{device.type}': use a CUDA GPU, or the CPU")
    try:
        trial = bitsandbytes.functional.quantize_4bit(torch.ones(64, 64, device=device), quant_type="nf4")
        bitsandbytes.functional.dequantize_4bit(*trial)
    except Exception as error:
        raise UserError(f"{what} needs bitsandbytes, which fails on '{device}': {first_line(error)}") from error
    return bitsandbytes


def check_packed_library(device: torch.device, where: str) -> Any:
    """`check_library` for a checkpoint; `where` names it."""
    return check_library(device, f"{where} is stored in 4 bits, which")


@torch.no_grad()
def quantise(model: Any, device: torch.device, compute_dtype: torch.dtype, excluded: Collection[str]) -> str | None:
    """Replace the linear layers by 4-bit ones on the device, one at a time; not the head, nor the `excluded` ones. The
    result is a notice if most weights are not in such layers."""
    library = check_library(device)
    head = model.get_output_embeddings()
    linear = [
        (name, module)
        for name, module in model.named_modules()
        if type(module) is nn.Linear and module is not head and name not in excluded
    ]
    packed = sum(module.weight.numel() for _, module in linear)
    if not linear:
        kind = model.config.model_type
        raise UserError(f"model.weights: 4bit: '{kind}' has no linear layers that bitsandbytes can hold: leave it out")
    outside = {id(weight): weight.numel() for weight in (head.weight, model.get_input_embeddings().weight)}
    rest = sum(weight.numel() for weight in model.parameters()) - packed - sum(outside.values())
    for name, module in linear:
        with torch.device("meta"):
            layer = library.nn.Linear4bit(module.in_features, module.out_features, bias=False)
        four_bit = library.nn.Params4bit(module.weight.data.to(device).float(), requires_grad=False, quant_type="nf4")
        layer.weight, layer.bias = four_bit.to(device), module.bias
        module.weight = None  # type: ignore[assignment]
        owner, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(owner), attribute, layer)
    prepare(model, compute_dtype)
    if rest <= packed:
        return None
    return (
        f"{rest / (rest + packed):.0%} of the layers' weights are not in linear layers, as experts: not held in 4 bits"
    )


def prepare(model: Any, compute_dtype: torch.dtype) -> None:
    """Make 4-bit layers compute as autocast would: from inputs, and to results, in the compute dtype."""
    for name, module in model.named_modules():
        if is_quantised(module):
            if getattr(module.weight, "quant_state", None) is None:
                raise UserError(f"model: {name}.weight is not stored in 4 bits, though the model's config.json says so")
            module.compute_dtype, module.compute_type_is_set = compute_dtype, True
            module.quant_state = None  # the weight has it: a copy of the layer would copy it again
            module.weight.quant_state.dtype = compute_dtype  # of the matrix in the backward pass
            module.support_avx512bf16_for_cpu = False  # repacks the weights in place, for products without gradients
            module.requires_grad_(False)
            module.register_forward_pre_hook(_cast_input)
            if module.in_features % BLOCK and module.weight.device.type == "cpu":
                module.forward = partial(_plain_product, module)


def _cast_input(module: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (inputs[0].to(module.compute_dtype), *inputs[1:])


def _plain_product(module: Any, inputs: Tensor) -> Tensor:
    """The layer's result where blocks go beyond rows: there bitsandbytes' kernel for x86 takes the scales of others."""
    return functional.linear(inputs, dequantised(module).to(module.compute_dtype), module.bias)


@torch.no_grad()
def dequantised(module: Any) -> Tensor:
    """The weight of a 4-bit layer in float32."""
    import bitsandbytes

    state = copy(module.weight.quant_state)
    shape, state.dtype = state.shape, torch.float32
    if shape.numel() % BLOCK == 0:
        state.shape = torch.Size((shape.numel() // BLOCK, BLOCK))  # a block a row: see `_plain_product`
    return bitsandbytes.functional.dequantize_4bit(module.weight.data, state).reshape(shape)


@torch.no_grad()
def to_float32(model: Any) -> None:
    """Hold all weights in float32, as before they were rounded or, of 4-bit layers, as they are dequantised."""
    for name, module in list(model.named_modules()):
        if is_quantised(module):
            plain = nn.Linear(module.in_features, module.out_features, bias=False, device="meta")
            plain.weight, plain.bias = nn.Parameter(dequantised(module), requires_grad=False), module.bias
            owner, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(owner), attribute, plain.eval())
    model.float()
