"""The count of memory that torch does not count; tests/gpu/test_held_memory_cuda.py has the memory itself."""

import pytest
import torch

from vigneron.rollout.engine import cuda_memory


def test_the_peak_is_that_of_both_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    torchs = {"memory_allocated": 0, "memory_reserved": 0, "max_memory_allocated": 0, "max_memory_reserved": 0}
    for name in torchs:
        monkeypatch.setattr(torch.cuda, name, lambda device=None, name=name: torchs[name])
    monkeypatch.setattr(cuda_memory, "_held", {})
    monkeypatch.setattr(cuda_memory, "_peaks", {})
    gpu, other = torch.device("cuda", 0), torch.device("cuda", 1)

    def torch_has(allocated: int, reserved: int) -> None:
        torchs.update(memory_allocated=allocated, memory_reserved=reserved)
        most = max(torchs["max_memory_allocated"], allocated), max(torchs["max_memory_reserved"], reserved)
        torchs.update(max_memory_allocated=most[0], max_memory_reserved=most[1])

    torch_has(10, 20)
    cuda_memory._count(0, 100)
    assert cuda_memory.held_bytes(gpu) == 100
    assert cuda_memory.held_bytes(other) == 0
    torch_has(11, 50)  # while it is held: seen before it is released
    cuda_memory._count(0, -100)
    torch_has(90, 120)  # an update, without it
    assert cuda_memory.held_bytes(gpu) == 0
    assert cuda_memory.peak_held_bytes(gpu) == (111, 150)
    torch_has(130, 140)
    assert cuda_memory.peak_held_bytes(gpu) == (130, 150)
    cuda_memory._count(0, 100)  # and beside what the update has left
    assert cuda_memory.peak_held_bytes(gpu) == (230, 240)
    cuda_memory.reset_peak_held(gpu)
    torch_has(5, 6)
    assert cuda_memory.peak_held_bytes(gpu) == (130, 140)  # torch's own, reset separately; now 105 and 106
