"""A method whose optimizer is plain gradient descent, so that a step is −rate · gradient."""

from typing import Any

import torch

from vigneron.methods import build_method
from vigneron.policy.model import Policy
from vigneron.policy.reference import Reference
from vigneron.recipe import check_config
from vigneron.training.method import Method
from vigneron.training.parts import Parts


def descending(policy: Policy, rate: float, **recipe: Any) -> Method:
    """Without a limit of the gradient's norm. The reward leaves batches as they are."""
    config = check_config({"optimizer": {"actor_lr": rate, "max_grad_norm": 1e9}, **recipe}, "test")
    method = build_method(Parts.of(config, policy, Reference.of(policy), lambda batch: batch))
    (actor,) = method.update.optimized  # type: ignore[attr-defined]
    actor.optimizer = torch.optim.SGD([parameter for _, parameter in actor.parameters], lr=rate)
    return method
