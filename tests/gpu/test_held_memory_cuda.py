"""Memory of the driver is counted beside torch's, on a GPU."""

import pytest
import torch

from vigneron.rollout.engine import cuda_memory
from vigneron.rollout.engine.cuda_memory import ReleasableMemory

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICE = torch.device("cuda")


def test_held_memory_is_counted_until_it_is_released() -> None:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    cuda_memory.reset_peak_held()
    before, reserved = cuda_memory.held_bytes(), torch.cuda.memory_reserved()
    memory = ReleasableMemory(2**28, DEVICE)
    assert cuda_memory.held_bytes() - before == memory.size >= 2**28
    memory.release()
    memory.release()
    assert cuda_memory.held_bytes() == before
    assert cuda_memory.peak_held_bytes()[1] == reserved + before + memory.size
    memory.restore()
    assert cuda_memory.held_bytes() - before == memory.size
    del memory
    assert cuda_memory.held_bytes() == before
