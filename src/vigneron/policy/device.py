"""The device and the dtype that a model computes with."""

import platform
import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch

from vigneron.errors import UserError


def resolve_device(device: str) -> torch.device:
    if device != "auto":
        if device.startswith("cuda") and not torch.cuda.is_available():
            raise UserError(f"model.device: '{device}' is set, but torch sees no CUDA device (try device: auto)")
        if device == "mps" and not torch.backends.mps.is_available():
            raise UserError("model.device: 'mps' is set, but torch sees no Apple GPU (try device: auto)")
        return torch.device(device)
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def use_device(device: torch.device) -> None:
    """Make a GPU that is given by its number the current one, on which Triton's kernels run."""
    if device.type == "cuda" and device.index is not None:
        if device.index >= torch.cuda.device_count():
            raise UserError(f"model.device: '{device}' is set, but torch sees {torch.cuda.device_count()} CUDA devices")
        torch.cuda.set_device(device)


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """`use_device` for a block."""
    numbered = device.type == "cuda" and device.index is not None
    return torch.cuda.device(device) if numbered else nullcontext()


def resolve_compute_dtype(dtype: Literal["auto", "float32", "bfloat16"], device: torch.device) -> torch.dtype:
    """The dtype of matrix products.

    auto: bfloat16 if the hardware supports it, else float32 (emulated bfloat16 is 4 to 100 times slower).
    """
    if dtype == "auto":
        return torch.bfloat16 if has_bfloat16(device) else torch.float32
    if dtype == "bfloat16" and device.type == "cpu" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        # torch would do so at the first large product in bfloat16, with a stack trace; and as float32 products then
        # differ in their last bits, a resumed run would differ from one that was not interrupted.
        torch.backends.mkldnn.set_flags(False)
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[dtype]


def is_emulated(dtype: str, device: torch.device) -> bool:
    """Whether a CPU computes bfloat16 products without instructions for them."""
    return device.type == "cpu" and dtype == "bfloat16" and not has_bfloat16(device)


def quiet_emulation() -> None:
    """torch warns of an emulated product by a page of C++ frames."""
    warnings.filterwarnings("ignore", message=r"mkldnn_\w+ failed, switching to BLAS gemm")


def has_bfloat16(device: torch.device) -> bool:
    """As reported by the hardware. Not measured: timings would make two runs of one recipe differ."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type == "cpu" and cpu_has_bfloat16()


def cpu_has_bfloat16() -> bool:
    """Whether the CPU has instructions for products in bfloat16. torch's library for products takes bfloat16 on any x86
    with AVX-512 and emulates it there, at a quarter of float32's speed."""
    if platform.machine().lower() in ("x86_64", "amd64"):
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
