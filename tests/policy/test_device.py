"""A GPU that is given by its number becomes the current one; tests/gpu has what runs on it."""

from contextlib import nullcontext

import pytest
import torch

from vigneron.errors import UserError
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
