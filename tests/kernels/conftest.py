"""The Triton kernels: on a CUDA device; on a CPU by Triton's interpreter, with `make test-kernels`."""

import os
from collections.abc import Iterator

import pytest
import torch

from support.kernels import teach_bfloat16
from vigneron.policy.compiling import has_triton, interpreted_kernels


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if torch.cuda.is_available():
        yield
    elif os.environ.get("TRITON_INTERPRET") == "1" and has_triton():
        teach_bfloat16(monkeypatch)
        with interpreted_kernels():
            yield
    else:
        pytest.skip("needs a CUDA device, or `make test-kernels`")
