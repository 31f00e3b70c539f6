"""Sharding by FSDP2 of the decoder layers' matrices, which are nearly all of a model.

Embeddings, head, norms and biases stay unsharded: the head is used outside the model's forward pass, and small weights
are not worth communicating. Gradients are summed over the ranks, not averaged: losses have global denominators.
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
from vigneron.policy.compiling import decoder_layers
from vigneron.policy.model import Policy, trunk_of


@dataclass(frozen=True)
class Sharding:
    """The device mesh of a policy's weights, and the model's structure without weights."""

    mesh: DeviceMesh
    skeleton: Any

    def with_weights(self, weights: dict[str, nn.Parameter]) -> Any:
        """A model of the same structure with these weights; tied weights stay tied."""
        blank = dict(self.skeleton.named_parameters())
        return deepcopy(self.skeleton, {id(blank[name]): weight for name, weight in weights.items()})

    @torch.no_grad()
    def copy(self, policy: Policy) -> Any:
        """An independent copy with the same sharding: every rank copies its shards."""
        weights = dict(policy.model.named_parameters())
        copies = {
            name: _blank(weight) if ranks.is_sharded(weight) else nn.Parameter(weight.clone(), weight.requires_grad)
            for name, weight in weights.items()
        }
        model = _fully_shard(self.with_weights(copies), policy, self.mesh)
        parts = {name: weight.detach().clone() for name, weight in weights.items() if ranks.is_sharded(weight)}
        model.load_state_dict(parts, strict=False, assign=True)
        return model


@torch.no_grad()
def shard_policy(policy: Policy, shard: int) -> None:
    """Distribute rank 0's weights: each rank keeps one of `shard` shards. 1: nothing is sharded.

    Only one unsharded matrix at a time is on a device. Of the other ranks' models only the shapes are used.
    """
    if shard == 1:
        return
    model, device = policy.model, policy.device
    _match_rank0(model)
    policy.shares_prompts, policy.own_attention = ranks.run_on_rank0(
        lambda: (policy.shares_prompts, policy.own_attention)
    )
    for module in model.modules():
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else _broadcast(buffer, device)
    given = dict(model.named_parameters())
    blanks = {id(weight): _blank(weight) for weight in given.values()}
    policy.sharding = Sharding(_mesh(device, shard), deepcopy(model, dict(blanks)))
    sharded = {id(weight) for weight in _layer_matrices(policy.causal)}
    for weight in given.values():
        if id(weight) not in sharded:
            blanks[id(weight)] = nn.Parameter(_broadcast(weight, device), weight.requires_grad)
    for module in model.modules():
        for name, own in module._parameters.items():
            module._parameters[name] = None if own is None else blanks[id(own)]
    _fully_shard(model, policy, policy.sharding.mesh)
    now = dict(model.named_parameters())
    parts = {}
    for name in [name for name, weight in given.items() if id(weight) in sharded]:
        full, like = _broadcast_buffer(given.pop(name), device), now[name]
        parts[name] = distribute_tensor(full, like.device_mesh, like.placements, src_data_rank=0)
    model.load_state_dict(parts, strict=False, assign=True)


def _match_rank0(model: Any) -> None:
    """Check that names and shapes are those of rank 0's model, and tie the same weights.

    transformers may decide by the values whether two weights are tied, and only rank 0 has the values.
    """
    own = _structure(model)
    first, tied = ranks.run_on_rank0(lambda: (own, _tied(model)))

    def compare() -> None:
        if own != first:
            unlike = next((mine for mine, theirs in zip_longest(own, first) if mine != theirs), None) or ("fewer",)
            raise UserError(f"model: weight names or shapes differ from those on rank 0: {unlike[0]}")

    ranks.run_on_all_ranks(compare)
    for name, other in tied.items():
        place, _, key = name.rpartition(".")
        model.get_submodule(place)._parameters[key] = model.get_parameter(other)


def _structure(model: Any) -> list[tuple[Any, ...]]:
    weights = [(n, w.shape, w.dtype, w.requires_grad) for n, w in model.named_parameters(remove_duplicate=False)]
    return [*weights, *((n, b.shape, b.dtype) for n, b in model.named_buffers(remove_duplicate=False))]


def _tied(model: Any) -> dict[str, str]:
    """The name of each tied weight, with the name of the weight that it is tied to."""
    names: dict[int, str] = {}
    firsts = {name: names.setdefault(id(w), name) for name, w in model.named_parameters(remove_duplicate=False)}
    return {name: other for name, other in firsts.items() if name != other}


def _blank(weight: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(torch.empty(weight.shape, dtype=weight.dtype, device="meta"), weight.requires_grad)


def _broadcast(tensor: Tensor, device: torch.device) -> Tensor:
    """Rank 0's tensor on every rank's device."""
    return ranks.broadcast_tensor(_broadcast_buffer(tensor, device))


def _broadcast_buffer(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy on the device; on other ranks than 0 an uninitialized tensor that receives the values."""
    if ranks.is_rank0():
        return tensor.detach().to(device, copy=True).contiguous()
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=device)


def _mesh(device: torch.device, shard: int) -> DeviceMesh:
    copies = ranks.world_size() // shard
    if copies == 1:
        return init_device_mesh(device.type, (shard,), mesh_dim_names=("shard",))
    return init_device_mesh(device.type, (copies, shard), mesh_dim_names=("copy", "shard"))


def _fully_shard(model: Any, policy: Policy, mesh: DeviceMesh) -> Any:
    """Shard the matrices of the model's layers, in place."""
    causal = model.get_base_model() if hasattr(model, "get_base_model") else model
    halves = policy.compute_dtype == torch.bfloat16
    options: dict[str, Any] = {
        "mesh": mesh,
        "ignored_params": set(causal.parameters()) - _layer_matrices(causal),
        # Matrices are gathered in the dtype that autocast uses; activations are not cast.
        "mp_policy": MixedPrecisionPolicy(
            param_dtype=torch.bfloat16 if halves else None,
            reduce_dtype=torch.float32 if halves else None,
            cast_forward_inputs=False,
        ),
    }
    for layer in _layers(causal):
        fully_shard(layer, **options)
    fully_shard(trunk_of(causal), **options)
    for module in causal.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    return model


def _layer_matrices(causal: Any) -> set[nn.Parameter]:
    return {weight for layer in _layers(causal) for weight in layer.parameters() if weight.dim() > 1}


def _layers(causal: Any) -> list[nn.Module]:
    if layers := decoder_layers(causal):
        return layers
    raise UserError(f"scale.shard: '{causal.config.model_type}' has no list of decoder layers to shard: set it to 1")
