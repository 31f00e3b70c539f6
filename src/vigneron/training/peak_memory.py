"""The measured peak of a GPU's memory, for timings.jsonl: unlike metrics, it need not be the same after a resume."""

from dataclasses import dataclass

import torch

from vigneron.rollout.engine import cuda_memory
from vigneron.values import GB

RISE = 1.01
"""A peak is recorded if it is higher than the last one by this factor: in the first steps, and seldom later."""


@dataclass
class PeakMemory:
    device: torch.device
    _recorded: float = 0.0

    def risen(self) -> dict[str, float]:
        """The most that torch had allocated and reserved in this process, in GB, if it has risen: with the
        sampler's cache, which torch does not count."""
        if self.device.type != "cuda":
            return {}
        allocated, reserved = cuda_memory.peak_held_bytes(self.device)
        if max(allocated, reserved) <= RISE * self._recorded:
            return {}
        self._recorded = max(allocated, reserved)
        return {
            "memory/peak_allocated_gb": round(allocated / GB, 3),
            "memory/peak_reserved_gb": round(reserved / GB, 3),
        }
