"""What a method has in GPU memory beside the policy and its reference."""

from dataclasses import dataclass

import torch

from vigneron.config import Config, OptimizerConfig
from vigneron.config.phases import engine_samples
from vigneron.core.moments import device_state_bytes
from vigneron.distributed import ranks
from vigneron.policy.held_weights import linear_weights
from vigneron.policy.model import Policy

TRUST_REGION_VECTORS = 9
"""Vectors of the size of the trained weights that TRPO's constraint has at once, beside the gradient: of the conjugate
gradient and of a product with the Fisher matrix."""


@dataclass(frozen=True)
class Copies:
    """What a method has in memory beside the policy and its reference, which is not there yet when sizes are found."""

    own_critic: bool = False
    keeps_previous: bool = False
    """A frozen copy of the policy that sampled."""
    discriminator: int = 0
    """Bytes of a weight of a reward that is trained; 0: none is."""
    trust_region: bool = False
    """Vectors instead of the policy's moments."""
    engine: bool = True
    """Whether this process samples, from bfloat16 copies of float32 matrices."""

    @classmethod
    def of(cls, config: Config, *, held_out: bool = True) -> "Copies":
        method = config.method
        engine = engine_samples(config, held_out=held_out)
        per_weight = 2 if config.model.weights == "bfloat16" else 4
        discriminator = per_weight if method.trains_its_reward else 0
        return cls(method.has_own_critic, method.keeps_previous, discriminator, not method.steps_by_gradient, engine)


NO_COPIES = Copies()


def moment_bytes(policy: Policy, optimizer: OptimizerConfig) -> int:
    """AdamW's moments, which come with the first update."""
    numels = (ranks.local_tensor(weight).numel() for _, weight in policy.trainable())
    return device_state_bytes(optimizer.kind, numels, offload=optimizer.offload)


def later_bytes(policy: Policy, optimizer: OptimizerConfig, copies: Copies) -> int:
    """What comes to stay with the method and the first update: the policy's moments, a critic's weights and moments, a
    discriminator's, a frozen copy."""
    weights = sum(ranks.local_tensor(weight).nbytes for weight in policy.model.parameters())
    moments = moment_bytes(policy, optimizer)
    total = 0 if copies.trust_region else moments
    if copies.own_critic:
        total += weights + moments
    if copies.discriminator:
        numels = _base_numels(policy)
        total += copies.discriminator * sum(numels)
        total += device_state_bytes(optimizer.kind, numels, offload=optimizer.offload)
    if copies.keeps_previous:
        in_bfloat16 = policy.compute_dtype == torch.bfloat16 and policy.sharding is None
        rounded = [weight for weight in linear_weights(policy.model) if in_bfloat16 and weight.dtype == torch.float32]
        total += weights - sum(2 * weight.numel() for weight in rounded)
    return total


def later_update_bytes(policy: Policy, gradients: int, copies: Copies) -> int:
    """What an update has beside the policy's gradients: other gradients, a trust region's vectors."""
    critic = gradients if copies.own_critic else 0
    vectors = TRUST_REGION_VECTORS * gradients if copies.trust_region else 0
    return critic + vectors + copies.discriminator * sum(_base_numels(policy) if copies.discriminator else [])


def _base_numels(policy: Policy) -> list[int]:
    """Of the model without an adapter."""
    return [weight.numel() for name, weight in policy.model.named_parameters() if "lora_" not in name]
