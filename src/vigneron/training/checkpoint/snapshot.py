"""A run's state at one step, copied to the host: what is trained on meanwhile changes nothing in it."""

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vigneron.distributed import ranks
from vigneron.policy.model import Policy

# Of the host's memory that is free, this much may be taken by a copy. With less the state is written as it stands.
SHARE = 0.5


@dataclass
class Snapshot:
    """`weights` are the model's state dict, `tensors` and `scalars` (JSON) the rest; `memory` is by question."""

    step: int
    weights: dict[str, Tensor]
    tensors: dict[str, Tensor]
    scalars: str
    memory: Iterator[tuple[str, Any]] | None
    card: str
    """The model card."""
    copied: bool
    """False: the tensors are the live ones. Training waits until they are written."""


def take_snapshot(
    policy: Policy,
    step: int,
    tensors: Mapping[str, Tensor],
    scalars: Mapping[str, Any],
    memory: Iterator[tuple[str, Any]] | None = None,
    card: str = "",
) -> Snapshot:
    """All of it now, with every generator of random numbers. Weights that are never trained are not copied."""
    weights = policy.model.state_dict() if policy.sharding is None else _gathered(policy)
    trained = {name for name, _ in policy.trainable()} if hasattr(policy.model, "peft_config") else set(weights)
    state = {**tensors, **_rng_tensors()}
    text = json.dumps({"step": step, "rng": _rng_scalars(), **scalars})
    size = sum(t.nbytes for t in state.values()) + sum(weights[name].nbytes for name in trained if name in weights)
    copied = size < SHARE * free_host_memory()
    if copied:
        copies: dict[Any, Tensor] = {}
        weights = {name: _copy(t, copies) if name in trained else t for name, t in weights.items()}
        state = {name: _copy(t, copies) for name, t in state.items()}
    return Snapshot(step, weights, state, text, memory, card, copied)


def _gathered(policy: Policy) -> dict[str, Tensor]:
    """All weights, on the first rank: the others take part, and keep nothing of it."""
    found = {}
    for name, tensor in policy.model.state_dict().items():
        one = ranks.full_tensor(tensor)
        if ranks.is_rank0():
            found[name] = one.cpu() if ranks.is_sharded(tensor) else one
    return found


def _copy(tensor: Tensor, copies: dict[Any, Tensor]) -> Tensor:
    """Tensors that are one (tied weights) are one in the copy."""
    tensor = tensor.detach()
    key = (tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)
    if key not in copies or not tensor.numel():
        copies[key] = tensor.to("cpu", copy=True).contiguous()
    return copies[key]


def free_host_memory() -> float:
    """Bytes that can be had without swapping, of the machine and of the container; infinite where nobody says."""
    return min(_free_of_machine(), _free_of_container(Path("/sys/fs/cgroup")))


def _free_of_machine() -> float:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return float("inf")


def _free_of_container(group: Path) -> float:
    """What a control group may still take: files that it has cached are given up before it is stopped."""
    try:
        limit = int((group / "memory.max").read_text())
        taken = int((group / "memory.current").read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return float(limit - taken + int(stat["inactive_file"]))
    except (OSError, ValueError, KeyError):
        return float("inf")


def _rng_tensors() -> dict[str, Tensor]:
    states = {"rng.torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["rng.cuda"] = torch.cuda.get_rng_state()
    return states


def _rng_scalars() -> dict[str, Any]:
    version, internal, gauss = random.getstate()
    kind, keys, *rest = np.random.get_state()
    return {"python": [version, list(internal), gauss], "numpy": [kind, np.asarray(keys).tolist(), *rest]}


def restore_rng(tensors: dict[str, Tensor], scalars: dict[str, Any]) -> None:
    """A user's reward may draw from any of these."""
    torch.set_rng_state(tensors.pop("rng.torch"))
    cuda = tensors.pop("rng.cuda", None)
    if cuda is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(cuda)
    version, internal, gauss = scalars["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, *rest = scalars["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))
