"""A copy of a run's state at one step in host memory, so that training continues while it is written."""

import json
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vigneron.distributed import ranks
from vigneron.policy.model import Policy
from vigneron.training.host_memory import free_host_memory

# Share of the free host memory that the copy may take. If it needs more, training waits while the state is written.
MAX_MEMORY_SHARE = 0.5


@dataclass
class Snapshot:
    """`weights` is the model's state dict; `tensors` and `scalars` (JSON) are the other state; `memory` is GRAPE's."""

    step: int
    weights: dict[str, Tensor]
    tensors: dict[str, Tensor]
    scalars: str
    memory: Iterator[tuple[str, Any]] | None
    card: str
    """The model card."""
    copied: bool
    """False: the tensors are the live ones, and training waits until they are written."""


def take_snapshot(
    policy: Policy,
    step: int,
    tensors: Mapping[str, Tensor],
    scalars: Mapping[str, Any],
    memory: Iterator[tuple[str, Any]] | None = None,
    card: str = "",
) -> Snapshot:
    """Copy the state, with that of all random number generators. Frozen weights are not copied."""
    weights = policy.model.state_dict() if policy.sharding is None else _gather_weights(policy)
    trained = {name for name, _ in policy.trainable()} if hasattr(policy.model, "peft_config") else set(weights)
    generators, internal = rng_state()
    state = {**tensors, **generators}
    text = json.dumps({"step": step, "rng": internal, **scalars})
    size = sum(t.nbytes for t in state.values()) + sum(weights[name].nbytes for name in trained if name in weights)
    copied = size < MAX_MEMORY_SHARE * free_host_memory()
    if copied:
        copies: dict[Any, Tensor] = {}
        weights = {name: _copy(t, copies) if name in trained else t for name, t in weights.items()}
        state = {name: _copy(t, copies) for name, t in state.items()}
    return Snapshot(step, weights, state, text, memory, card, copied)


def _gather_weights(policy: Policy) -> dict[str, Tensor]:
    """All weights on rank 0, nothing on the others. A collective operation."""
    weights = {}
    for name, tensor in policy.model.state_dict().items():
        full = ranks.full_tensor(tensor)
        if ranks.is_rank0():
            weights[name] = full.cpu() if ranks.is_sharded(tensor) else full
    return weights


def _copy(tensor: Tensor, copies: dict[Any, Tensor]) -> Tensor:
    """A copy in host memory. Tied weights stay tied."""
    tensor = tensor.detach()
    key = (tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)
    if key not in copies or not tensor.numel():
        copies[key] = tensor.to("cpu", copy=True).contiguous()
    return copies[key]


def rng_state() -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Of all generators, for `restore_rng`: torch's, and those of Python and NumPy."""
    states = {"rng.torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["rng.cuda"] = torch.cuda.get_rng_state()
    version, internal, gauss = random.getstate()
    kind, keys, *rest = np.random.get_state()
    return states, {"python": [version, list(internal), gauss], "numpy": [kind, np.asarray(keys).tolist(), *rest]}


@contextmanager
def rng_unchanged() -> Iterator[None]:
    """What is drawn inside, by a user's reward too, leaves the generators as they were."""
    states = rng_state()
    try:
        yield
    finally:
        restore_rng(*states)


def restore_rng(tensors: dict[str, Tensor], scalars: dict[str, Any]) -> None:
    """Restore all generators: a user's reward may draw from any of them."""
    torch.set_rng_state(tensors.pop("rng.torch"))
    cuda = tensors.pop("rng.cuda", None)
    if cuda is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(cuda)
    version, internal, gauss = scalars["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, *rest = scalars["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))
