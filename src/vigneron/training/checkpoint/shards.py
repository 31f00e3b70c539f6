"""State of which every rank has a part, written by all of them: torch's DCP, in safetensors with JSON in their heads.

What is read again is whole, whatever number of ranks wrote it.
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
    """Every rank its parts, at the same time."""
    writer = HuggingFaceStorageWriter(str(draft / SHARDS), save_distributed=True)
    dcp.save(dict(tensors), storage_writer=writer)


def check_there(draft: Path) -> None:
    if not draft.is_dir():
        raise UserError(f"'{draft.parent}' is not there: weights that ranks share need a folder that all nodes see")


def read_shards(path: Path, places: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """This rank's part of each, where the tensor of that name, or the weight that it is about, is in parts.

    Nothing, where nothing was shared.
    """
    if not (path / SHARDS).is_dir():
        return {}
    known = HuggingFaceStorageReader(str(path / SHARDS)).read_metadata().state_dict_metadata
    found = {name: _empty(one, places.get(name, places.get(name.rpartition(".")[0]))) for name, one in known.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this rank reads by itself
        dcp.load(found, storage_reader=HuggingFaceStorageReader(str(path / SHARDS)), no_dist=True)
    return found


def _empty(known: Any, place: Tensor | None) -> Tensor:
    if place is not None and ranks.is_sharded(place) and place.shape == known.size:
        return torch.empty_like(place, dtype=known.properties.dtype, requires_grad=False)
    return torch.empty(known.size, dtype=known.properties.dtype)


def placed(value: Tensor, like: Tensor) -> Tensor:
    """A tensor as this rank holds another one: whole, or its part; its own memory, unless it was read as a part."""
    if ranks.is_sharded(value):
        return value
    if not ranks.is_sharded(like):
        return value.to(like.device, copy=True)
    value = value.to(like.device)
    own = distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None)  # type: ignore[attr-defined]
    return own.clone()  # not a view that keeps the whole
