"""Where the tests of Triton kernels run, and bfloat16 for Triton's interpreter."""

from typing import Any

import numpy as np
import pytest
import torch

INTERPRETED = not torch.cuda.is_available()
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")


def teach_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton 3.9's interpreter keeps bfloat16 as 16 bits: it casts to it by cutting bits off, where a GPU rounds to the
    nearest, and multiplies matrices of such bits as whole numbers."""
    from triton.language import bfloat16, float32
    from triton.runtime import interpreter

    convert, multiply = interpreter._convert_float, interpreter.InterpreterBuilder.create_dot

    def convert_float(given: Any, source: Any, target: Any, rounding: Any) -> Any:
        if (source, target) == (bfloat16, float32):
            return (given.astype(np.uint32) << 16).view(np.float32)
        if (source, target) == (float32, bfloat16):
            rounded = torch.from_numpy(np.ascontiguousarray(given)).bfloat16()
            return rounded.view(torch.uint16).numpy()
        return convert(given, source, target, rounding)

    def in_float32(handle: Any) -> Any:
        if handle.dtype.scalar != bfloat16:
            return handle
        return interpreter.TensorHandle(convert_float(handle.data, bfloat16, float32, None), float32)

    def create_dot(self: Any, left: Any, right: Any, *rest: Any) -> Any:
        return multiply(self, in_float32(left), in_float32(right), *rest)

    monkeypatch.setattr(interpreter, "_convert_float", convert_float)
    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)
