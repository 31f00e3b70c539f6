"""GPU memory that keeps its address while it is given back: the engine's cache between two calls.

A CUDA graph contains addresses. The driver's virtual memory functions separate them from memory: `release` returns the
memory to the device, `restore` puts other memory, with undefined contents, under the same addresses.
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from vigneron.values import memory_text

DEVICE, PINNED, READ_AND_WRITE = 1, 1, 3

_limit: int | None = None


def set_limit(size: int | None) -> None:
    """The bytes that this process may have: checked against torch's and these together whenever these are taken. None:
    no limit."""
    global _limit
    _limit = size


def limit() -> int | None:
    return _limit


_held: dict[int, int] = {}
_peaks: dict[int, tuple[int, int]] = {}
"""By device: the memory of this module, and its peaks together with torch's allocated and reserved memory."""


def held_bytes(device: torch.device | None = None) -> int:
    """The memory of this module that is not released, which torch does not count."""
    return _held.get(_index(device), 0)


def peak_held_bytes(device: torch.device | None = None) -> tuple[int, int]:
    """The most that torch had allocated, and that it had reserved, with what this module held at the same time: as seen
    when it took memory, before it released it, and now."""
    _note(_index(device))
    allocated, reserved = _peaks.get(_index(device), (0, 0))
    return (
        max(allocated, torch.cuda.max_memory_allocated(device)),
        max(reserved, torch.cuda.max_memory_reserved(device)),
    )


def reset_peak_held(device: torch.device | None = None) -> None:
    """Torch's own peaks are reset separately."""
    _peaks.pop(_index(device), None)


def _index(device: torch.device | None) -> int:
    return torch.cuda.current_device() if device is None or device.index is None else device.index


def _note(index: int) -> None:
    if held := _held.get(index, 0):
        now = torch.cuda.memory_allocated(index) + held, torch.cuda.memory_reserved(index) + held
        before = _peaks.get(index, (0, 0))
        _peaks[index] = max(now[0], before[0]), max(now[1], before[1])


def _count(index: int, size: int) -> None:
    """Count memory that was taken, or that is about to be released: a negative size."""
    _note(index)
    _held[index] = _held.get(index, 0) + size
    _note(index)


class _Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class _Properties(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("metadata", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


class _Access(ctypes.Structure):
    _fields_ = [("location", _Location), ("flags", ctypes.c_int)]


class _Typed:
    """What torch needs to make a tensor of bytes at an address."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 2,
        }


class ReleasableMemory:
    """Bytes on a CUDA device. Create it, call it and drop it while no kernel uses the memory."""

    def __init__(self, size: int, device: torch.device) -> None:
        self._device = device
        self._location = _Location(DEVICE, device.index if device.index is not None else torch.cuda.current_device())
        step = ctypes.c_size_t()
        _call("cuMemGetAllocationGranularity", ctypes.byref(step), ctypes.byref(self._properties()), 0)
        self.size = -(-size // step.value) * step.value
        self._address = ctypes.c_uint64()
        anywhere = ctypes.c_size_t(0), ctypes.c_uint64(0), ctypes.c_uint64(0)
        _call("cuMemAddressReserve", ctypes.byref(self._address), ctypes.c_size_t(self.size), *anywhere)
        self._handle: ctypes.c_uint64 | None = None
        self.restore()
        with torch.cuda.device(self._location.id):
            self.bytes: Tensor = torch.as_tensor(_Typed(self._address.value, self.size), device=device)

    def _properties(self) -> _Properties:
        return _Properties(PINNED, 0, self._location, None, (ctypes.c_ubyte * 8)())

    @property
    def held(self) -> bool:
        return self._handle is not None

    def restore(self) -> None:
        """Have memory under the addresses again. Raises torch.OutOfMemoryError if there is not enough."""
        if self.held:
            return
        if not self._fits():
            torch.cuda.empty_cache()  # torch may hold free blocks
            if not self._fits():
                raise self._error()
        handle = ctypes.c_uint64()
        arguments = (ctypes.c_size_t(self.size), ctypes.byref(self._properties()), ctypes.c_uint64(0))
        code = _driver().cuMemCreate(ctypes.byref(handle), *arguments)
        if code == 2:  # out of memory: torch may hold free blocks
            torch.cuda.empty_cache()
            code = _driver().cuMemCreate(ctypes.byref(handle), *arguments)
        if code == 2:
            raise self._error()
        _check("cuMemCreate", code)
        _call("cuMemMap", self._address, ctypes.c_size_t(self.size), ctypes.c_size_t(0), handle, ctypes.c_uint64(0))
        access = _Access(self._location, READ_AND_WRITE)
        _call("cuMemSetAccess", self._address, ctypes.c_size_t(self.size), ctypes.byref(access), ctypes.c_size_t(1))
        self._handle = handle
        _count(self._location.id, self.size)

    def _fits(self) -> bool:
        return _limit is None or torch.cuda.memory_reserved(self._device) + self.size <= _limit

    def _error(self) -> Exception:
        return torch.OutOfMemoryError(f"CUDA out of memory: {memory_text(self.size)} for the sampler's cache")

    def release(self) -> None:
        """Give the memory back. What was in it is lost."""
        if self._handle is None:
            return
        torch.cuda.synchronize(self._device)
        _count(self._location.id, -self.size)
        _call("cuMemUnmap", self._address, ctypes.c_size_t(self.size))
        _call("cuMemRelease", self._handle)
        self._handle = None

    def __del__(self) -> None:
        if getattr(self, "_address", None) is not None and self._address.value:
            self.release()
            _call("cuMemAddressFree", self._address, ctypes.c_size_t(self.size))


def cut(memory: Tensor, shapes: Sequence[tuple[int, ...]], dtype: torch.dtype) -> list[Tensor]:
    """Tensors of these shapes, one after another in the bytes of `memory`."""
    parts, at = [], 0
    for shape in shapes:
        size = dtype.itemsize * torch.Size(shape).numel()
        parts.append(memory[at : at + size].view(dtype).view(shape))
        at += -(-size // 256) * 256
    return parts


@cache
def can_release() -> bool:
    """Whether the driver has these functions: CUDA's, not ROCm's."""
    try:
        return all(hasattr(_driver(), name) for name in ("cuMemCreate", "cuMemMap", "cuMemAddressReserve"))
    except OSError:
        return False


@cache
def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")


def _call(name: str, *arguments: Any) -> None:
    _check(name, getattr(_driver(), name)(*arguments))


def _check(name: str, code: int) -> None:
    if code:
        raise RuntimeError(f"{name} failed with CUDA error {code}")
