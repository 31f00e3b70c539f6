"""Decoder layers of the sampling model with joined matrix products: for bfloat16 on a CUDA device with Triton."""

from typing import Any

import torch
from torch import Tensor, nn

from vigneron.policy.compiling import decoder_layers
from vigneron.policy.fused_modules import close, fuse_modules
from vigneron.policy.fused_ops import fused_gated
from vigneron.rollout.engine.joined_linear import JoinedLinear, Member, base_of, can_join


@torch.no_grad()
def fuse_layers(model: Any) -> None:
    """Fuse the modules of a model and join products with the same input, in place."""
    fuse_modules(model)
    for layer in decoder_layers(model):
        attention = getattr(layer, "self_attn", None)
        if attention is not None:
            _join(attention, "q_proj", "k_proj", "v_proj")
            _join(attention, "o_proj")
        _join_mlp(layer)
        torch.cuda.empty_cache()  # the old matrices' memory, before the next layer needs some


def _join(owner: nn.Module, *names: str) -> None:
    """Join layers of a module; a single one only for its adapter."""
    members = [getattr(owner, name, None) for name in names]
    if any(member is None for member in members) or not can_join(members):
        return
    if len(members) == 1 and base_of(members[0]) is members[0]:
        return
    joined = JoinedLinear(members)
    owner.add_module("vigneron_" + "_".join(names), joined)
    for number, name in enumerate(names):
        setattr(owner, name, Member(joined, number))


class JoinedMlp(nn.Module):
    """down(activation(gate(x)) · up(x))."""

    def __init__(self, gate_and_up: nn.Module, down: nn.Module, activation: Any) -> None:
        super().__init__()
        self.gate_and_up, self.down, self._activation = gate_and_up, down, activation

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_and_up(x).chunk(2, dim=-1)
        return self.down(fused_gated(gate, up, self._activation))


def _join_mlp(layer: Any) -> None:
    mlp: Any = getattr(layer, "mlp", None)
    if not hasattr(mlp, "vigneron_activation"):
        return
    members = [mlp.gate_proj, mlp.up_proj] if hasattr(mlp, "gate_proj") else [mlp.gate_up_proj]
    if not can_join(members):
        return
    weight = base_of(members[0]).weight
    x = torch.linspace(-1, 1, 2 * weight.shape[1], device=weight.device, dtype=torch.bfloat16).view(1, 2, -1)
    expected = mlp(x)
    _join(mlp, "down_proj")
    joined = JoinedMlp(JoinedLinear(members), mlp.down_proj, mlp.vigneron_activation)
    if close(joined(x), expected):
        layer.mlp = joined  # else the layers stay, and their matrices are parts of the joined one
