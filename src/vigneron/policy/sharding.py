"""Weights that ranks share, by FSDP2: the matrices of the decoder layers, which are nearly all of a model.

Embeddings, head, norms and biases stay whole on every rank: the head is read outside of the model's own pass, and what
is small is not worth sending. Gradients are summed over the ranks, never averaged: losses have global denominators.
"""

from copy import deepcopy
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import distribute_tensor

from vigneron.distributed import ranks
from vigneron.errors import UserError
from vigneron.policy.model import Policy


@dataclass(frozen=True)
class Sharding:
    """How a policy's weights are spread, and its structure without them."""

    mesh: DeviceMesh
    skeleton: Any

    def filled(self, weights: dict[str, nn.Parameter]) -> Any:
        """A model of the same structure with these weights in it; weights that are tied stay so."""
        blank = dict(self.skeleton.named_parameters())
        return deepcopy(self.skeleton, {id(blank[name]): weight for name, weight in weights.items()})

    @torch.no_grad()
    def copied(self, policy: Policy) -> Any:
        """A model of its own, sharded in the same way: every rank copies its part."""
        found = dict(policy.model.named_parameters())
        copies = {
            name: _blank(weight) if ranks.is_sharded(weight) else nn.Parameter(weight.clone(), weight.requires_grad)
            for name, weight in found.items()
        }
        model = _sharded(self.filled(copies), policy, self.mesh)
        parts = {name: weight.detach().clone() for name, weight in found.items() if ranks.is_sharded(weight)}
        model.load_state_dict(parts, strict=False, assign=True)
        return model


@torch.no_grad()
def shard_policy(policy: Policy, shard: int) -> None:
    """Each rank keeps one of `shard` parts of what the first one has. 1: nothing is sharded.

    One weight at a time is whole on a device; of the other ranks' own weights nothing but shapes is looked at.
    """
    if shard == 1:
        return
    model, device = policy.model, policy.device
    _follow_structure(model)
    policy.shares_prompts = ranks.run_on_rank0(lambda: policy.shares_prompts)
    for module in model.modules():
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else _sent(buffer, device)
    given = dict(model.named_parameters())
    blanks = {id(weight): _blank(weight) for weight in given.values()}
    policy.sharding = Sharding(_mesh(device, shard), deepcopy(model, dict(blanks)))
    shared = {id(weight) for weight in _layer_matrices(policy.causal)}
    for weight in given.values():
        if id(weight) not in shared:
            blanks[id(weight)] = nn.Parameter(_sent(weight, device), weight.requires_grad)
    for module in model.modules():
        for name, own in module._parameters.items():
            module._parameters[name] = None if own is None else blanks[id(own)]
    _sharded(model, policy, policy.sharding.mesh)
    now = dict(model.named_parameters())
    parts = {}
    for name in [name for name, weight in given.items() if id(weight) in shared]:
        whole, like = _sendable(given.pop(name), device), now[name]
        parts[name] = distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=0)
    model.load_state_dict(parts, strict=False, assign=True)


def _follow_structure(model: Any) -> None:
    """Every rank's model is made as the first one's: the same names and shapes, and the same weights tied.

    Whether two weights are one may be found in their values, which the other ranks do not have.
    """
    own = _structure(model)
    first, tied = ranks.run_on_rank0(lambda: (own, _tied(model)))

    def compare() -> None:
        if own != first:
            unlike = next((mine for mine, theirs in zip_longest(own, first) if mine != theirs), None) or ("fewer",)
            raise UserError(f"model: its weights have other names or shapes here than on rank 0: {unlike[0]}")

    ranks.run_on_all_ranks(compare)
    for name, other in tied.items():
        place, _, key = name.rpartition(".")
        model.get_submodule(place)._parameters[key] = model.get_parameter(other)


def _structure(model: Any) -> list[tuple[Any, ...]]:
    weights = [(n, w.shape, w.dtype, w.requires_grad) for n, w in model.named_parameters(remove_duplicate=False)]
    return [*weights, *((n, b.shape, b.dtype) for n, b in model.named_buffers(remove_duplicate=False))]


def _tied(model: Any) -> dict[str, str]:
    """Weights that are another one's, by name, with the name of that one."""
    names: dict[int, str] = {}
    found = {name: names.setdefault(id(w), name) for name, w in model.named_parameters(remove_duplicate=False)}
    return {name: other for name, other in found.items() if name != other}


def _blank(weight: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(torch.empty(weight.shape, dtype=weight.dtype, device="meta"), weight.requires_grad)


def _sent(tensor: Tensor, device: torch.device) -> Tensor:
    """What the first rank has, on every one's device."""
    return ranks.broadcast_tensor(_sendable(tensor, device))


def _sendable(tensor: Tensor, device: torch.device) -> Tensor:
    """On its device, and not the model's own; where this rank will be given its values, with any."""
    if ranks.is_rank0():
        return tensor.detach().to(device, copy=True).contiguous()
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=device)


def _mesh(device: torch.device, shard: int) -> DeviceMesh:
    copies = ranks.world_size() // shard
    if copies == 1:
        return init_device_mesh(device.type, (shard,), mesh_dim_names=("shard",))
    return init_device_mesh(device.type, (copies, shard), mesh_dim_names=("copy", "shard"))


def _sharded(model: Any, policy: Policy, mesh: DeviceMesh) -> Any:
    """The same model, its layers' matrices in parts."""
    causal = model.get_base_model() if hasattr(model, "get_base_model") else model
    halves = policy.compute_dtype == torch.bfloat16
    options: dict[str, Any] = {
        "mesh": mesh,
        "ignored_params": set(causal.parameters()) - _layer_matrices(causal),
        # Matrices are sent as autocast would read them; what flows between them is left as it is.
        "mp_policy": MixedPrecisionPolicy(
            param_dtype=torch.bfloat16 if halves else None,
            reduce_dtype=torch.float32 if halves else None,
            cast_forward_inputs=False,
        ),
    }
    for layer in _decoder_layers(causal):
        fully_shard(layer, **options)
    fully_shard(causal.base_model, **options)
    for module in causal.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    return model


def _layer_matrices(causal: Any) -> set[nn.Parameter]:
    return {weight for layer in _decoder_layers(causal) for weight in layer.parameters() if weight.dim() > 1}


def _decoder_layers(causal: Any) -> nn.ModuleList:
    count = causal.config.num_hidden_layers
    for module in causal.base_model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    raise UserError(f"scale.shard: '{causal.config.model_type}' has no list of {count} layers to shard: set it to 1")
