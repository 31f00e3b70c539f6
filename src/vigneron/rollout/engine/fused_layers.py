"""Decoder layers of the sampling model in fewer and larger kernels: for bfloat16 on a CUDA device with Triton.

A decode step is short: in a layer of transformers, some thirty small kernels take as long as its matrix products.
Here products with the same input are joined, and norms, rotary positions, gated activations and adapters are a kernel
each. Only what has the usual form is replaced, and only where the result is that of the module that it replaces.
"""

from collections.abc import Callable
from inspect import unwrap
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, silu

from vigneron.policy.compiling import decoder_layers
from vigneron.rollout.engine.joined_linear import JoinedLinear, Member, base_of, can_join
from vigneron.rollout.engine.layer_kernels import Activation, gated, rms_norm, rotate

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "silu": silu,
    "gelu_tanh": lambda x: gelu(x, approximate="tanh"),
}
ROTARY = "apply_rotary_pos_emb"


@torch.no_grad()
def fuse_layers(model: Any) -> None:
    """Replace parts of a model's decoder layers, in place."""
    for layer in decoder_layers(model):
        attention, mlp = getattr(layer, "self_attn", None), getattr(layer, "mlp", None)
        joined = attention is not None and _join(attention, "q_proj", "k_proj", "v_proj")
        if attention is not None:
            _join(attention, "o_proj")
            _fuse_rotary(attention)
        fused = mlp is not None and _fuse_mlp(layer)
        norms = {name for name, module in layer.named_children() if _is_norm(module)}
        feeds_products = joined and fused and norms == {"input_layernorm", "post_attention_layernorm"}
        for owner in [module for module in layer.modules() if not isinstance(module, FusedNorm)]:
            _fuse_norms(owner, torch.bfloat16 if owner is layer and feeds_products else None)
        if layer_device(layer).type == "cuda":  # the old matrices' memory, before the next layer needs some
            torch.cuda.empty_cache()
    for owner in list(model.modules()):
        _fuse_norms(owner, None)


def layer_device(layer: nn.Module) -> torch.device:
    return next(tensor.device for tensor in (*layer.parameters(), *layer.buffers()))


def _join(owner: nn.Module, *names: str) -> bool:
    """Join layers of a module; a single one only for its adapter."""
    members = [getattr(owner, name, None) for name in names]
    if any(member is None for member in members) or not can_join(members):
        return False
    if len(members) == 1 and base_of(members[0]) is members[0]:
        return False
    joined = JoinedLinear(members)
    owner.add_module("vigneron_" + "_".join(names), joined)
    for number, name in enumerate(names):
        setattr(owner, name, Member(joined, number))
    return True


# ---------------------------------------------------------------------------------------- gated activations


class FusedMlp(nn.Module):
    """down(activation(gate(x)) · up(x))."""

    def __init__(self, gate_and_up: nn.Module, down: nn.Module, activation: Activation) -> None:
        super().__init__()
        self.gate_and_up, self.down, self._activation = gate_and_up, down, activation

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_and_up(x).chunk(2, dim=-1)
        return self.down(gated(gate, up, self._activation))


def _fuse_mlp(layer: Any) -> bool:
    mlp = layer.mlp
    named = {name for name, _ in mlp.named_children()}
    two = {"gate_proj", "up_proj", "down_proj"} <= named
    if not two and not {"gate_up_proj", "down_proj"} <= named:
        return False
    members = [mlp.gate_proj, mlp.up_proj] if two else [mlp.gate_up_proj]
    activation = _activation(getattr(mlp, "act_fn", getattr(mlp, "activation_fn", None)))
    extra = named - {"gate_proj", "up_proj", "gate_up_proj", "down_proj", "act_fn", "activation_fn"}
    if activation is None or extra or not can_join([*members]) or not can_join([mlp.down_proj]):
        return False
    width = base_of(members[0]).in_features
    x = torch.linspace(-1, 1, 2 * width, device=layer_device(mlp), dtype=torch.bfloat16).view(1, 2, width)
    expected = mlp(x)
    _join(mlp, "down_proj")
    fused = FusedMlp(JoinedLinear(members), mlp.down_proj, activation)
    layer.mlp = fused
    if not close(fused(x), expected):
        layer.mlp = mlp  # its matrices are parts of the joined one, which changes nothing
        return False
    return True


def _activation(function: Any) -> Activation | None:
    """The name of an activation function that the kernel has."""
    if function is None:
        return None
    x = torch.linspace(-6, 6, 97)
    try:
        y = function(x)
    except Exception:  # any model is possible
        return None
    return next((name for name, known in ACTIVATIONS.items() if torch.allclose(y, known(x), atol=1e-5)), None)


# -------------------------------------------------------------------------------------------------- norms


class FusedNorm(nn.Module):
    """x / √(mean x² + eps) · (weight + added)."""

    def __init__(self, norm: Any, added: float, dtypes: dict[torch.dtype, torch.dtype]) -> None:
        super().__init__()
        self.weight, self._eps, self._added, self._dtypes = norm.weight, _eps(norm), added, dtypes

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self._eps, self._added, self._dtypes[x.dtype])


def _is_norm(module: nn.Module) -> bool:
    return isinstance(module, FusedNorm) or (
        type(module).__name__.endswith("RMSNorm") and isinstance(getattr(module, "weight", None), nn.Parameter)
    )


def _eps(norm: Any) -> float:
    return float(getattr(norm, "variance_epsilon", getattr(norm, "eps", 0.0)))


def _fuse_norms(owner: nn.Module, dtype: torch.dtype | None) -> None:
    """Replace the norms among a module's children. `dtype`: that of their results, if not the module's own."""
    for name, norm in list(owner.named_children()):
        if _is_norm(norm) and not isinstance(norm, FusedNorm) and (fused := _fused_norm(norm, dtype)) is not None:
            setattr(owner, name, fused)


def _fused_norm(norm: Any, dtype: torch.dtype | None) -> FusedNorm | None:
    x = torch.linspace(-2, 3, 3 * norm.weight.numel(), device=norm.weight.device).view(1, 3, -1)
    kinds = (torch.float32, torch.bfloat16)
    try:
        expected = {kind: norm(x.to(kind)) for kind in kinds}
    except Exception:  # any model is possible
        return None
    for added in (0.0, 1.0):
        plain = FusedNorm(norm, added, {kind: expected[kind].dtype for kind in kinds})
        if all(close(plain(x.to(kind)), expected[kind]) for kind in kinds):
            return plain if dtype is None else FusedNorm(norm, added, dict.fromkeys(kinds, dtype))
    return None


# --------------------------------------------------------------------------------------- rotary positions


def _fuse_rotary(attention: Any) -> None:
    """Let an attention module rotate queries and keys by the kernel: its forward function, with another name."""
    function = type(attention).forward
    if not isinstance(function, FunctionType) or unwrap(function) is not function:
        return
    original = function.__globals__.get(ROTARY)
    if ROTARY not in function.__code__.co_names or not callable(original) or not _is_half_rotation(original, attention):
        return
    fused = FunctionType(
        function.__code__,
        {**function.__globals__, ROTARY: _rotate},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    fused.__kwdefaults__ = function.__kwdefaults__
    attention.forward = MethodType(fused, attention)


def _rotate(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return rotate(query, key, cos, sin, torch.bfloat16)


def _is_half_rotation(function: Any, attention: Any) -> bool:
    """Whether it turns dimension d with d + D/2, all of them."""
    size = getattr(attention, "head_dim", None)
    if not isinstance(size, int) or size % 2:
        return False
    device = layer_device(attention)
    query = torch.linspace(-1, 1, 2 * 3 * size, device=device).view(1, 2, 3, size)
    cos, sin = (torch.linspace(0, top, 3 * size, device=device).view(1, 3, size) for top in (1, 2))
    try:
        expected = function(query, query[:, :1], cos, sin)
        return all(close(got, true) for got, true in zip(_rotate(query, query[:, :1], cos, sin), expected, strict=True))
    except Exception:  # any model is possible
        return False


def close(got: Tensor, expected: Tensor) -> bool:
    """Equal up to rounding to bfloat16."""
    got, expected = got.float(), expected.float()
    return got.shape == expected.shape and bool((got - expected).norm() <= 2e-2 * expected.norm() + 1e-6)
