"""Share tensors with another process on the same GPU through CUDA IPC handles."""

from collections.abc import Sequence
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import rebuild_cuda_tensor, reduce_tensor

# Position of the device index in a handle: the other process may number its GPUs differently.
DEVICE_FIELD = list(signature(rebuild_cuda_tensor).parameters).index("storage_device")

Handle = tuple[Any, ...]


def gpu_uuid(device: torch.device) -> str | None:
    """The GPU's UUID, the same in every process; None without a GPU."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else None


def ipc_handles(tensors: Sequence[Tensor]) -> list[Handle]:
    """Handles for one process: torch counts the references to them."""
    return [reduce_tensor(tensor)[1] for tensor in tensors]


def open_handles(handles: Sequence[Handle]) -> list[Tensor]:
    """Tensors in the owner's memory: its writes are visible here."""
    device = torch.cuda.current_device()
    local: list[Any] = [(*handle[:DEVICE_FIELD], device, *handle[DEVICE_FIELD + 1 :]) for handle in handles]
    return [rebuild_cuda_tensor(*handle) for handle in local]
