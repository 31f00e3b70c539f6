"""A GPU that is given by its number becomes the current one (tests/gpu has what runs on it), and which CPUs compute in
bfloat16."""

import platform
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from vigneron.errors import UserError
from vigneron.policy import device
from vigneron.policy.device import on_device, use_device


def test_only_a_numbered_gpu_is_made_current(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for name in ("cpu", "cuda", "cuda:1"):
        use_device(torch.device(name))
    assert chosen == [torch.device("cuda:1")]
    with pytest.raises(UserError, match=r"^model.device: 'cuda:2' is set, but torch sees 2 CUDA devices$"):
        use_device(torch.device("cuda:2"))
    assert isinstance(on_device(torch.device("cpu")), nullcontext)
    assert isinstance(on_device(torch.device("cuda")), nullcontext)
    assert isinstance(on_device(torch.device("cuda:1")), torch.cuda.device)


@pytest.mark.parametrize(
    ("machine", "avx512_bf16", "amx", "library", "expected"),
    [
        ("x86_64", False, False, True, False),  # AVX-512 alone: torch's library emulates products
        ("x86_64", True, False, True, True),
        ("AMD64", False, True, True, True),
        ("x86_64", False, False, False, False),
        ("aarch64", False, False, True, True),
        ("arm64", False, False, False, False),
    ],
)
def test_a_cpu_computes_in_bfloat16_if_it_has_instructions_for_it(
    machine: str, avx512_bf16: bool, amx: bool, library: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512_bf16)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: library)
    own: Any = device.cpu_has_bfloat16
    assert own.__wrapped__() is expected
