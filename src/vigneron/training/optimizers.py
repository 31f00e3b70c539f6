"""The optimizers of a run: AdamW for the policy, and for the critic where there is one."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from vigneron.config import OptimizerConfig
from vigneron.core.moments import Kind
from vigneron.distributed import ranks
from vigneron.training.adamw import CompactAdamW, convert_state
from vigneron.training.checkpoint.shards import shard_like


@dataclass
class Optimized:
    """Parameters with their own AdamW and their own clipping: the actor, the critic."""

    name: Literal["actor", "critic"]
    parameters: Sequence[tuple[str, nn.Parameter]]
    learning_rate: float
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    kind: Kind = "adamw"
    offload: bool = False
    seed: int = 0
    """Of the stochastic rounding of weights in bfloat16."""
    optimizer: torch.optim.Optimizer = field(init=False)

    def __post_init__(self) -> None:
        weights = [parameter for _, parameter in self.parameters]
        if self.kind != "adamw" or self.offload or any(weight.dtype == torch.bfloat16 for weight in weights):
            self.optimizer = CompactAdamW(
                [(f"{self.name}.{name}", parameter) for name, parameter in self.parameters],
                lr=self.learning_rate,
                weight_decay=self.weight_decay,
                kind=self.kind,
                offload=self.offload,
                seed=self.seed,
            )
            return
        sharded, whole = _apart(weights)
        self.optimizer = torch.optim.AdamW(
            [{"params": some} for some in (whole, sharded) if some],
            lr=self.learning_rate,
            weight_decay=self.weight_decay,
            fused=all(p.is_cuda or p.device.type == "cpu" for p in weights),
        )

    def clip(self) -> Tensor:
        """Scale the gradient to at most `max_grad_norm`; its norm before."""
        weights = [parameter for _, parameter in self.parameters]
        sharded, whole = _apart(weights)
        if not sharded and all(weight.dtype != torch.bfloat16 for weight in weights):
            return torch.nn.utils.clip_grad_norm_(weights, self.max_grad_norm)
        norm = torch.stack([_norm(some) for some in (whole, sharded) if some]).norm()
        for some in (whole, sharded):
            torch.nn.utils.clip_grads_with_norm_(some, self.max_grad_norm, norm)
        return norm

    def step(self, factor: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate * factor
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def tensors(self) -> dict[str, Tensor]:
        state = self.optimizer.state
        return {
            f"{self.name}.{name}.{key}": value
            for name, parameter in self.parameters
            for key, value in state.get(parameter, {}).items()
        }

    def load(self, tensors: dict[str, Tensor]) -> None:
        for name, parameter in self.parameters:
            prefix = f"{self.name}.{name}."
            state = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
            if isinstance(self.optimizer, CompactAdamW):
                self.optimizer.state[parameter] = self.optimizer.place(parameter, state)
                continue
            state = convert_state(state, "adamw", parameter.numel())
            # Only a fused optimizer counts its steps on the parameter's device.
            counter = parameter.device if self.optimizer.defaults["fused"] else torch.device("cpu")
            self.optimizer.state[parameter] = {
                key: value.to(counter).clone() if key == "step" else shard_like(value, parameter)
                for key, value in state.items()
            }


def make_optimizers(
    options: OptimizerConfig,
    actor: Sequence[tuple[str, nn.Parameter]],
    critic: Sequence[tuple[str, nn.Parameter]] = (),
    *,
    seed: int = 0,
) -> list[Optimized]:
    """The actor, and the critic where there is one."""
    shared: dict[str, Any] = {
        "weight_decay": options.weight_decay,
        "max_grad_norm": options.max_grad_norm,
        "kind": options.kind,
        "offload": options.offload,
        "seed": seed,
    }
    optimized = [Optimized("actor", actor, options.actor_lr, **shared)]
    return [*optimized, Optimized("critic", critic, options.critic_lr, **shared)] if critic else optimized


def _apart(weights: Sequence[nn.Parameter]) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Those of which ranks have parts, and those that every rank has whole: one operation never takes both."""
    return [w for w in weights if ranks.is_sharded(w)], [w for w in weights if not ranks.is_sharded(w)]


def _norm(weights: Sequence[nn.Parameter]) -> Tensor:
    grads = [weight.grad for weight in weights if weight.grad is not None]
    if not grads:
        return torch.zeros((), device=weights[0].device)
    if all(grad.dtype != torch.bfloat16 for grad in grads):
        return ranks.full_tensor(torch.nn.utils.get_total_norm(grads))
    # Else the norm of each gradient would be rounded to bfloat16.
    return torch.stack([torch.linalg.vector_norm(grad, dtype=torch.float32) for grad in grads]).norm()
