"""Weights that ranks share, by FSDP2: the matrices of the decoder layers, which are nearly all of a model.

Embeddings, head, norms and biases stay whole on every rank: the head is read outside of the model's own pass, and what
is small is not worth sending. Gradients are summed over the ranks, never averaged: losses have global denominators.
"""

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from vigneron import ranks
from vigneron.errors import UserError
from vigneron.policy.model import Policy, Reference


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
        """A model of its own, sharded in the same way."""
        found = {
            name: nn.Parameter(ranks.whole(weight).detach().clone(), requires_grad=weight.requires_grad)
            for name, weight in policy.model.named_parameters()
        }
        return _sharded(self.filled(found), policy, self.mesh)


def shard_policies(policy: Policy, reference: Reference, shard: int) -> None:
    """Each rank keeps one of `shard` parts. 1: nothing is sharded."""
    if shard == 1:
        return
    mesh = _mesh(policy.device, shard)
    for each in {id(p): p for p in (policy, reference.policy)}.values():
        blank = {id(weight): _blank(weight) for weight in each.model.parameters()}
        each.sharding = Sharding(mesh, deepcopy(each.model, blank))
        _sharded(each.model, each, mesh)


def _blank(weight: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(torch.empty_like(weight, device="meta"), weight.requires_grad)


def _mesh(device: torch.device, shard: int) -> DeviceMesh:
    copies = ranks.count() // shard
    if copies == 1:
        return init_device_mesh(device.type, (shard,), mesh_dim_names=("shard",))
    return init_device_mesh(device.type, (copies, shard), mesh_dim_names=("copy", "shard"))


def _sharded(model: Any, policy: Policy, mesh: DeviceMesh) -> Any:
    """The same model, its layers' matrices in parts."""
    causal = model.get_base_model() if hasattr(model, "get_base_model") else model
    layers = _decoder_layers(causal)
    shared = {weight for layer in layers for weight in layer.parameters() if weight.dim() > 1}
    halves = policy.compute_dtype == torch.bfloat16
    options: dict[str, Any] = {
        "mesh": mesh,
        "ignored_params": set(causal.parameters()) - shared,
        # Matrices are sent as autocast would read them; what flows between them is left as it is.
        "mp_policy": MixedPrecisionPolicy(
            param_dtype=torch.bfloat16 if halves else None,
            reduce_dtype=torch.float32 if halves else None,
            cast_forward_inputs=False,
        ),
    }
    for layer in layers:
        fully_shard(layer, **options)
    fully_shard(causal.base_model, **options)
    for module in causal.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    return model


def _decoder_layers(causal: Any) -> nn.ModuleList:
    count = causal.config.num_hidden_layers
    for module in causal.base_model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    raise UserError(f"scale.shard: '{causal.config.model_type}' has no list of {count} layers to shard: set it to 1")
