"""Products with the Fisher matrix of a policy, the curvature of KL(π₀ ‖ π₁) at π₁ = π₀, without building it.

F = (1/N) Σ Jᵀ (diag p − p pᵀ) J over N tokens, where J is the Jacobian of a token's logits. Takes two backward passes
and one Jacobian-vector product by double differentiation; exact up to rounding.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from vigneron.batch import Batch
from vigneron.core.draws import Sampling
from vigneron.distributed import ranks
from vigneron.policy.fused_class import plain_modules
from vigneron.policy.model import Policy
from vigneron.policy.packing import lay_out
from vigneron.policy.rank_batches import rank_microbatches

# Tokens per pass: several copies of their logits are kept in memory.
MAX_TOKENS = 1024


def fisher_product(
    policy: Policy, batch: Batch, vector_P: Float[Tensor, " P"], *, sampling: Sampling, microbatch_tokens: int
) -> Float[Tensor, " P"]:
    """F · vector over all trainable weights in their order, for the trained tokens of the batch."""
    weights = [weight for _, weight in policy.trainable()]
    vectors = [
        part.view_as(weight) for part, weight in zip(vector_P.split([w.numel() for w in weights]), weights, strict=True)
    ]
    count = int(batch.trained_BT.sum())
    total_P = torch.zeros_like(vector_P)
    twice = plain_modules(), sdpa_kernel(SDPBackend.MATH), torch.compiler.set_stance("force_eager")
    with torch.enable_grad(), twice[0], twice[1], twice[2]:
        for part in rank_microbatches(batch, min(microbatch_tokens, MAX_TOKENS)):
            total_P += _part_product(policy, part, sampling, weights, vectors, count)
    return total_P if batch.packing.owners is None else ranks.all_reduce_sum(total_P)


def _part_product(
    policy: Policy,
    part: Batch,
    sampling: Sampling,
    weights: Sequence[Tensor],
    vectors: Sequence[Tensor],
    count: int,
) -> Tensor:
    logits_NV = _trained_logits(policy, part, sampling)
    if not len(logits_NV):
        return torch.cat([torch.zeros_like(weight).flatten() for weight in weights])
    # J · vector: the derivative of Jᵀu by u, which Jᵀu is linear in.
    u_NV = torch.zeros_like(logits_NV, requires_grad=True)
    pulled = torch.autograd.grad(logits_NV, weights, u_NV, create_graph=True, allow_unused=True)
    inner = torch.stack([(g * v).sum() for g, v in zip(pulled, vectors, strict=True) if g is not None]).sum()
    (pushed_NV,) = torch.autograd.grad(inner, u_NV, retain_graph=True)
    p_NV = logits_NV.detach().softmax(-1)
    weighted_NV = p_NV * (pushed_NV - (p_NV * pushed_NV).sum(-1, keepdim=True)) / count
    grads = torch.autograd.grad(logits_NV, weights, weighted_NV, allow_unused=True)
    flat = [torch.zeros_like(w) if g is None else g for g, w in zip(grads, weights, strict=True)]
    return torch.cat([g.flatten() for g in flat])


def _trained_logits(policy: Policy, part: Batch, sampling: Sampling) -> Float[Tensor, "N V"]:
    """Logits / temperature at the trained tokens, in a graph that can be differentiated twice."""
    layout = lay_out(part, policy, graphs=False)
    hidden_RSH = policy.trunk(layout.ids_RS, layout.positions_RS, layout.apart)
    trained_N = part.trained_BT.flatten()[layout.into_N]
    return policy.logits(hidden_RSH.flatten(0, 1)[layout.predicts_N][trained_N]) / sampling.temperature
