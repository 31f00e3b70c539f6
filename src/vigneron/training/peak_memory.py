"""Measured memory and use of the GPU, for timings.jsonl: unlike metrics, it need not be the same after a resume."""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from vigneron.rollout.engine import cuda_memory
from vigneron.run_store.speed import GPU_PERCENT
from vigneron.values import GB

RISE = 1.01
"""A peak is recorded if it is higher than the last one by this factor: in the first steps, and seldom later."""


STATM = Path("/proc/self/statm")


def memory_now(device: torch.device) -> dict[str, float]:
    """What this process holds after a step, in GB: its own memory (on Linux), and the GPU's."""
    held: dict[str, float] = {}
    with suppress(OSError, ValueError, IndexError):
        held["memory/host_gb"] = round(int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / GB, 3)
    if device.type == "cuda":
        held["memory/gpu_gb"] = round((torch.cuda.memory_allocated(device) + cuda_memory.held_bytes(device)) / GB, 3)
    return held


@dataclass
class GpuUse:
    device: torch.device
    _known: bool = True

    def now(self) -> dict[str, float]:
        """How much of the last second, or less, the GPU was busy, in percent. Known where nvidia-ml-py is installed."""
        if self.device.type == "cuda" and self._known:
            try:
                return {GPU_PERCENT: float(torch.cuda.utilization(self.device))}
            except Exception:  # no package, no driver, no permission: a run goes on without it
                self._known = False
        return {}


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
