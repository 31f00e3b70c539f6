"""The measured peak of a GPU's memory, as metrics of the steps in which it rose."""

from dataclasses import dataclass

import torch

from vigneron.training.method import Metrics

GB = 2**30
RISE = 1.01
"""A peak is logged if it is higher than the last one by this factor."""


@dataclass
class PeakMemory:
    device: torch.device
    _logged: float = 0.0

    def metrics(self) -> Metrics:
        if self.device.type != "cuda":
            return {}
        return self.risen(torch.cuda.max_memory_allocated(self.device), torch.cuda.max_memory_reserved(self.device))

    def risen(self, allocated: int, reserved: int) -> Metrics:
        """Both peaks if the process's memory has grown: in the first steps, and seldom later."""
        if reserved <= RISE * self._logged:
            return {}
        self._logged = reserved
        return {"memory/peak_allocated_gb": allocated / GB, "memory/peak_reserved_gb": reserved / GB}
