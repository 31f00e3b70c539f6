"""GPU memory of a whole process, as the driver counts it: context, graphs and what vLLM allocates beside torch.

Read from NVML, which may be called while a CUDA graph is captured. It counts all processes of the GPU, so a contestant
runs alone, and what was used before it started is subtracted.
"""

import ctypes
import threading
from ctypes import byref, c_ulonglong, c_void_p

INTERVAL_S = 0.02


class _Memory(ctypes.Structure):
    _fields_ = (("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong))


class DeviceMemory:
    """The peak of the first GPU's used memory since `reset`, above that at the start."""

    def __init__(self) -> None:
        self._handle = c_void_p()
        self._library: ctypes.CDLL | None = None
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return
        if library.nvmlInit_v2() or library.nvmlDeviceGetHandleByIndex_v2(0, byref(self._handle)):
            return
        self._library = library
        self._before = self._most = self._ever = self.used() or 0
        threading.Thread(target=self._watch, daemon=True).start()

    def used(self) -> int | None:
        memory = _Memory()
        if self._library is None or self._library.nvmlDeviceGetMemoryInfo(self._handle, byref(memory)):
            return None
        return int(memory.used)

    def reset(self) -> None:
        self._most = self.used() or 0

    def peaks(self) -> dict[str, int]:
        """Since `reset`, and since the start."""
        if self._library is None:
            return {}
        return {"device": self._most - self._before, "device_from_start": self._ever - self._before}

    def _watch(self) -> None:
        pause = threading.Event()
        while not pause.wait(INTERVAL_S):
            now = self.used() or 0
            self._most, self._ever = max(self._most, now), max(self._ever, now)


_watched: list[DeviceMemory] = []


def watch_device() -> DeviceMemory:
    """The process's own watch, started by the first call: before anything is on the GPU."""
    if not _watched:
        _watched.append(DeviceMemory())
    return _watched[0]
