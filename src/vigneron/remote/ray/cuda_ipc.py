"""Weights lent to a process on the same GPU, which reads them where they are, by CUDA's handles of memory."""

from collections.abc import Sequence
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import rebuild_cuda_tensor, reduce_tensor

# Where the GPU's number stands among what a tensor is rebuilt from: the borrower may count its GPUs otherwise.
NUMBER = list(signature(rebuild_cuda_tensor).parameters).index("storage_device")

Handle = tuple[Any, ...]


def gpu_of(device: torch.device) -> str | None:
    """The name that this GPU alone has, whoever asks."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else None


def lent(tensors: Sequence[Tensor]) -> list[Handle]:
    """To one process: torch counts who has them."""
    return [reduce_tensor(tensor)[1] for tensor in tensors]


def borrowed(handles: Sequence[Handle]) -> list[Tensor]:
    """The lender's own memory: what it writes there is seen here."""
    ours: list[Any] = [(*handle[:NUMBER], torch.cuda.current_device(), *handle[NUMBER + 1 :]) for handle in handles]
    return [rebuild_cuda_tensor(*handle) for handle in ours]
