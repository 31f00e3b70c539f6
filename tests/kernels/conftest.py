"""The Triton kernels: on a CUDA device; without one by Triton's interpreter, on the CPU (`make setup-kernels`)."""

import os
from collections.abc import Iterator

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when a module with kernels is imported; nothing else runs them on a CPU

from support.kernels import teach_bfloat16
from vigneron.policy.compiling import has_triton, interpreted_kernels


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if not has_triton():
        assert not os.environ.get("VIGNERON_NEED_TRITON"), "Triton is not installed"
        pytest.skip("needs Triton")
    if torch.cuda.is_available():
        yield
        return
    teach_bfloat16(monkeypatch)
    with interpreted_kernels():
        yield
