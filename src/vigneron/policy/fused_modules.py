"""Decoder layers with fewer and larger kernels, for bfloat16 on a CUDA device with Triton, in training and sampling.

In a layer of transformers, norms, rotary positions, gated activations and adapters are dozens of small kernels, which
take as long as its matrix products and keep as much memory for the backward pass. Here each is one kernel. A module
gets another class, so the names of weights do not change. Only what has the usual form is replaced: norms and gated
activations are compared with the module's own class, rotary positions with the model's function, a layer's sums with
its own forward pass; adapters are those that peft adds by B A x alone. `rollout.engine.sample` compares whole models.
"""

from collections.abc import Sequence
from functools import cache
from inspect import unwrap
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from vigneron.policy.activations import activation_name
from vigneron.policy.compiling import can_run_kernels, decoder_layers
from vigneron.policy.fused_class import KINDS, kind_of, subclass
from vigneron.policy.fused_sums import fuse_sums
from vigneron.policy.kernel_shapes import is_shapes_only

ROTARY = "apply_rotary_pos_emb"


def can_fuse(device: torch.device, compute_dtype: torch.dtype) -> bool:
    return compute_dtype == torch.bfloat16 and can_run_kernels(device)


@torch.no_grad()
def fuse_modules(model: Any) -> bool:
    """Replace parts of a model, in place; whether all of its layers have them."""
    layers = decoder_layers(model)
    with torch.autocast(_device(model).type, dtype=torch.bfloat16):
        complete = [_fuse_layer(layer) for layer in layers]
        for norm in (module for module in model.modules() if is_norm(module)):
            _fuse_norm(norm, None)
    for module in model.modules():
        if is_plain_adapter(module):
            module.__class__ = _adapted(kind_of(module))
    if not layers or not all(complete):  # such layers may be compiled
        return False
    for layer in layers:
        fuse_sums(layer)
    return True


def _fuse_layer(layer: Any) -> bool:
    attention, mlp = getattr(layer, "self_attn", None), getattr(layer, "mlp", None)
    rotates = attention is not None and _fuse_rotary(attention)
    gates = mlp is not None and _fuse_mlp(mlp)
    norms = {name: module for name, module in layer.named_children() if is_norm(module)}
    products = attention is not None and (hasattr(attention, "q_proj") or hasattr(attention, "qkv_proj"))
    feeds_products = products and gates and norms.keys() == {"input_layernorm", "post_attention_layernorm"}
    normed = [_fuse_norm(norm, torch.bfloat16 if feeds_products else None) for norm in norms.values()]
    return rotates and gates and bool(normed) and all(normed)


def _device(module: nn.Module) -> torch.device:
    return next(tensor.device for tensor in (*module.parameters(), *module.buffers()))


def _try(module: Any, kind: Any, inputs: Sequence[tuple[Tensor, ...]], expected: Sequence[Tensor]) -> bool:
    """Give a module another class, if its results stay the expected ones."""
    before = type(module)
    module.__class__ = kind
    if all(close(module(*given), result) for given, result in zip(inputs, expected, strict=True)):
        return True
    module.__class__ = before
    return False


def close(got: Tensor, expected: Tensor) -> bool:
    """Equal up to rounding to bfloat16. Tensors without values are, if their shapes are."""
    if is_shapes_only():
        return got.shape == expected.shape
    got, expected = got.float(), expected.float()
    return got.shape == expected.shape and bool((got - expected).norm() <= 2e-2 * expected.norm() + 1e-6)


# ---------------------------------------------------------------------------------------- gated activations


def _fuse_mlp(mlp: Any) -> bool:
    """down(activation(gate(x)) · up(x)), with two matrices or one."""
    if getattr(mlp, "fused", False):
        return True
    named = {name for name, _ in mlp.named_children()}
    two = {"gate_proj", "up_proj", "down_proj"} <= named
    known = {"gate_proj", "up_proj", "gate_up_proj", "down_proj", "act_fn", "activation_fn"}
    activation = activation_name(getattr(mlp, "act_fn", getattr(mlp, "activation_fn", None)))
    if activation is None or named - known or not (two or {"gate_up_proj", "down_proj"} <= named):
        return False
    first = mlp.gate_proj if two else mlp.gate_up_proj
    width = getattr(first, "in_features", None)
    if width is None:
        return False
    x = torch.linspace(-1, 1, 2 * width, device=_device(mlp), dtype=torch.bfloat16).view(1, 2, width)
    try:
        expected = mlp(x)
    except Exception:  # any model is possible
        return False
    mlp.vigneron_activation = activation
    return _try(mlp, _gated_mlp(kind_of(mlp), two), [(x,)], [expected])


@cache
def _gated_mlp(kind: Any, two: bool) -> Any:
    from vigneron.policy.fused_ops import fused_gated

    def forward(self: Any, x: Tensor) -> Any:
        gate, up = (self.gate_proj(x), self.up_proj(x)) if two else self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(fused_gated(gate, up, self.vigneron_activation))

    return subclass(kind, forward)


# -------------------------------------------------------------------------------------------------- norms


def is_norm(module: nn.Module) -> bool:
    return type(module).__name__.endswith("RMSNorm") and isinstance(getattr(module, "weight", None), nn.Parameter)


def _fuse_norm(norm: Any, dtype: torch.dtype | None) -> bool:
    """x / √(mean x² + eps) · (weight + added), in `dtype`, or in the norm's own one."""
    if getattr(norm, "fused", False):
        return True
    x = torch.linspace(-2, 3, 3 * norm.weight.numel(), device=norm.weight.device).view(1, 3, -1)
    small = torch.cat([1e-3 * x, 0 * x], 1)  # shows the epsilon
    inputs = [(numbers.to(kind),) for kind in KINDS for numbers in (x, small)]
    try:
        expected = [norm(*given) for given in inputs]
    except Exception:  # any model is possible
        return False
    eps = float(getattr(norm, "variance_epsilon", getattr(norm, "eps", 0.0)) or 0.0)
    dtypes = {kind: dtype or result.dtype for kind, result in zip(KINDS, expected[::2], strict=True)}
    for added in (0.0, 1.0):
        norm.vigneron_norm = eps, added, dtypes
        if _try(norm, _fused_norm(kind_of(norm)), inputs, expected):
            return True
    return False


@cache
def _fused_norm(kind: Any) -> Any:
    from vigneron.policy.fused_ops import fused_norm

    def forward(self: Any, x: Tensor) -> Tensor:
        eps, added, dtypes = self.vigneron_norm
        return fused_norm(x, self.weight, eps, added, dtypes[x.dtype])

    return subclass(kind, forward)


# --------------------------------------------------------------------------------------- rotary positions


def _fuse_rotary(attention: Any) -> bool:
    """Let an attention module rotate queries and keys by the kernel: its forward function, with another name."""
    if getattr(attention, "fused", False):
        return True
    function = type(attention).forward
    if not isinstance(function, FunctionType) or unwrap(function) is not function:
        return False
    original = function.__globals__.get(ROTARY)
    if ROTARY not in function.__code__.co_names or not callable(original) or not _is_half_rotation(original, attention):
        return False
    attention.__class__ = _rotating(kind_of(attention))
    return True


@cache
def _rotating(kind: Any) -> Any:
    from vigneron.policy.fused_ops import fused_rotary

    function = kind.forward
    original = function.__globals__[ROTARY]

    def turned(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, *args: Any, **kwargs: Any) -> Any:
        """The kernel turns whole heads, of [rows, heads, tokens, size]."""
        if args or kwargs or cos.dim() != 3 or cos.shape[-1] != query.shape[-1] or query.shape[-1] != key.shape[-1]:
            return original(query, key, cos, sin, *args, **kwargs)
        return fused_rotary(query, key, cos, sin)

    names = {**function.__globals__, ROTARY: turned}
    forward = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    forward.__kwdefaults__ = function.__kwdefaults__
    return subclass(kind, forward)


def _is_half_rotation(function: Any, attention: Any) -> bool:
    """Whether it turns dimension d with d + D/2, all of them."""
    from vigneron.policy.fused_ops import fused_rotary

    size = getattr(attention, "head_dim", None)
    if not isinstance(size, int) or size % 2:
        return False
    device = _device(attention)
    query = torch.linspace(-1, 1, 2 * 3 * size, device=device).view(1, 2, 3, size)
    cos, sin = (torch.linspace(0, top, 3 * size, device=device).view(1, 3, size) for top in (1, 2))
    try:
        given = query, query[:, :1], cos, sin
        return all(close(got, true) for got, true in zip(fused_rotary(*given), function(*given), strict=True))
    except Exception:  # any model is possible
        return False


# ------------------------------------------------------------------------------------------------ adapters


def is_plain_adapter(module: Any) -> bool:
    """Whether a module is peft's wrapper of a frozen linear layer with one adapter that adds scale · B A x, and nothing
    else that peft can do."""
    if not hasattr(module, "lora_A") or len(module.lora_A) != 1 or getattr(module, "lora_variant", None):
        return False
    base = module.get_base_layer()
    if not isinstance(base, nn.Linear) or module.base_layer is not base or base.weight.requires_grad:
        return False
    (name,) = module.lora_A
    parts = module.lora_A[name], module.lora_B[name]
    return all(type(part) is nn.Linear and part.bias is None for part in parts)


@cache
def _adapted(kind: Any) -> Any:
    from vigneron.policy.fused_ops import fused_adapted

    def forward(self: Any, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        if self.disable_adapters or self.merged or args or kwargs or not torch.is_autocast_enabled(x.device.type):
            return kind.forward(self, x, *args, **kwargs)
        (name,) = self.lora_A
        parts = self.lora_A[name].weight, self.lora_B[name].weight, float(self.scaling[name])
        base = self.base_layer
        if type(base) is nn.Linear and base.weight.dtype == torch.bfloat16:
            return fused_adapted(x, None, base.weight, base.bias, *parts)
        return fused_adapted(x, base(x), None, None, *parts)

    return subclass(kind, forward)
