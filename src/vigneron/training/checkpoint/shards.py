"""Sharded state, written by all ranks with torch's distributed checkpoint (DCP) in safetensors.

It can be read by any number of ranks.
"""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.tensor import distribute_tensor

from vigneron.distributed import ranks
from vigneron.errors import UserError

SHARDS = "state/shards"


def write_shards(draft: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write this rank's shards. A collective operation: every rank must call it."""
    writer = HuggingFaceStorageWriter(str(draft / SHARDS), save_distributed=True)
    dcp.save(dict(tensors), storage_writer=writer)


def check_shared_folder(draft: Path) -> None:
    if not draft.is_dir():
        raise UserError(
            f"'{draft.parent}' does not exist on this node: sharded weights need a run folder that all nodes share"
        )


def read_shards(path: Path, places: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors by name: this rank's shard where the tensor of that name in `places`, or its weight, is sharded.

    Empty if the checkpoint has no shards.
    """
    if not (path / SHARDS).is_dir():
        return {}
    metadata = HuggingFaceStorageReader(str(path / SHARDS)).read_metadata().state_dict_metadata
    tensors = {
        name: _empty(one, places.get(name, places.get(name.rpartition(".")[0]))) for name, one in metadata.items()
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about reading without a process group
        dcp.load(tensors, storage_reader=HuggingFaceStorageReader(str(path / SHARDS)), no_dist=True)
    return tensors


def _empty(metadata: Any, place: Tensor | None) -> Tensor:
    if place is not None and ranks.is_sharded(place) and place.shape == metadata.size:
        return torch.empty_like(place, dtype=metadata.properties.dtype, requires_grad=False)
    return torch.empty(metadata.size, dtype=metadata.properties.dtype)


def shard_like(value: Tensor, like: Tensor) -> Tensor:
    """A copy of `value` on the device of `like`, sharded if `like` is. A sharded `value` is returned as it is."""
    if ranks.is_sharded(value):
        return value
    if not ranks.is_sharded(like):
        return value.to(like.device, copy=True)
    value = value.to(like.device)
    shard = distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None)  # type: ignore[attr-defined]
    return shard.clone()  # a view would keep the full tensor in memory
