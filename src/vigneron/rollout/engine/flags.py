"""Values on a device that the host reads later, without waiting for what was started after them."""

from typing import Any

import torch
from torch import Tensor


class Flags:
    """One truth value under each number."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._kept: dict[int, tuple[Tensor, Any]] = {}

    def note(self, number: int, value: Tensor) -> None:
        """Keep a value that may not be computed yet."""
        if not self._cuda:
            self._kept[number] = value, None
            return
        kept, event = self._kept.get(number) or (torch.empty((), dtype=torch.bool, pin_memory=True), torch.cuda.Event())
        kept.copy_(value, non_blocking=True)
        event.record(torch.cuda.current_stream(value.device))
        self._kept[number] = kept, event

    def read(self, number: int) -> bool:
        """Wait until it is computed."""
        value, event = self._kept[number]
        if event is not None:
            event.synchronize()
        return bool(value)
