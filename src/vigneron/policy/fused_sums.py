"""A decoder layer's two sums with fewer kernels: y = x + attention(norm(x)) with the norm of y, and y + mlp(norm(y)).

torch's kernel for the sum of a float32 and a bfloat16 tensor is slow, and a norm reads again what a sum has written.
"""

from copy import copy
from functools import cache
from inspect import Parameter, signature
from typing import Any

import torch
from torch import Tensor, nn

from vigneron.policy.fused_class import KINDS, kind_of, subclass

PARTS = ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp")


def fuse_sums(layer: Any) -> None:
    """x + attention(norm(x)), then y + mlp(norm(y)): the first sum with the second norm, the second sum by a kernel.
    What else is done to a norm's result or a sum, as in Granite and Gemma 2, stays."""
    if getattr(layer, "fused", False) or not all(hasattr(layer, name) for name in PARTS):
        return
    others = [module for name, module in layer.named_children() if name not in PARTS]
    own = [*layer.parameters(recurse=False), *layer.buffers(recurse=False)]
    if own or not all(isinstance(module, nn.Dropout | nn.Identity) for module in others):
        return
    kind = kind_of(layer)
    if _is_pre_norm(layer, _summing(kind)):
        layer.__class__ = _summing(kind)


@cache
def _summing(kind: Any) -> Any:
    defaults = {each.name: each.default for each in _options(kind) if each.default is not Parameter.empty}

    def forward(self: Any, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        if args or self.training:  # dropout
            return kind.forward(self, hidden_states, *args, **kwargs)
        residual, x = _add_norm(hidden_states, None, self.input_layernorm)
        y, _ = self.self_attn(hidden_states=x, **{**defaults, **kwargs})
        residual, x = _add_norm(residual, y, self.post_attention_layernorm)
        return _add(residual, self.mlp(x))

    return subclass(kind, forward)


def _options(kind: Any) -> list[Parameter]:
    """Of a layer's forward pass: its parameters but `self` and hidden states."""
    return list(signature(kind.forward).parameters.values())[2:]


def _add_norm(x: Tensor, y: Tensor | None, norm: Any) -> tuple[Tensor, Tensor]:
    """The sum, or x, and its norm."""
    from vigneron.policy.fused_ops import fused_add_norm

    if getattr(norm, "fused", False) and _is_usual(x, y):
        eps, added, dtypes = norm.vigneron_norm
        return fused_add_norm(x, y, norm.weight, eps, added, dtypes[x.dtype])
    total = x if y is None else x + y
    return total, norm(total)


def _add(x: Tensor, y: Tensor) -> Tensor:
    from vigneron.policy.fused_ops import fused_add

    return fused_add(x, y) if _is_usual(x, y) else x + y


def _is_usual(x: Tensor, y: Tensor | None) -> bool:
    """Whether the kernels can add them: the sum has the dtype and shape of x."""
    return x.dtype in KINDS and (y is None or (y.dtype in (x.dtype, torch.bfloat16) and y.shape == x.shape))


def _is_pre_norm(layer: Any, kind: Any) -> bool:
    """Whether a layer of another class gives the same numbers, and its attention the same arguments, with functions
    in place of its parts: in float64, where nothing is fused."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    options = _options(type(layer))
    named = [each for each in options if each.kind is not Parameter.VAR_KEYWORD]
    every: dict[str, Any] = {each.name: object() for each in named}
    if len(named) < len(options):
        every["any_other"] = object()
    least = {each.name: every[each.name] for each in named if each.default is Parameter.empty}
    with unset_fake_temporarily():  # also where models have only shapes
        x = torch.linspace(-1, 1, 12, dtype=torch.float64, device="cpu").view(1, 3, 4)
        try:
            calls = [[_call(layer, tried, x, given) for tried in (type(layer), kind)] for given in (every, least)]
            return all(_is_same(*pair) for pair in calls)
        except Exception:  # any model is possible
            return False


def _call(layer: Any, kind: Any, x: Tensor, options: dict[str, Any]) -> tuple[Any, Any]:
    """The result of a class's forward pass, and the arguments of attention, with functions in place of the parts."""
    stand_ins = {name: _StandIn(number, attends=name == "self_attn") for number, name in enumerate(PARTS)}
    trial = copy(layer)
    trial.__dict__.update(_modules={**layer._modules, **stand_ins}, training=False)
    return kind.forward(trial, x, **options), stand_ins["self_attn"].arguments


def _is_same(expected: tuple[Any, Any], got: tuple[Any, Any]) -> bool:
    tensors = isinstance(expected[0], Tensor) and isinstance(got[0], Tensor)
    return tensors and torch.equal(expected[0], got[0]) and expected[1] == got[1]


class _StandIn(nn.Module):
    """A function that differs for each number, and keeps the other arguments of its calls."""

    def __init__(self, number: int, *, attends: bool) -> None:
        super().__init__()
        self.number, self.attends = number, attends
        self.arguments: list[Any] = []

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        self.arguments.append((args, kwargs))
        out = torch.sin((self.number + 2) * hidden_states + self.number).roll(1, -1)
        return (out, None) if self.attends else out
