"""The memory pool of CUDA graphs with either allocator of torch, which is chosen when a process starts."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from support import TESTS
from vigneron import api
from vigneron.policy import cuda_graphs
from vigneron.policy.cuda_graphs import CudaGraphs
from vigneron.training.memory import clear_memory

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

CAPTURE_FREE_CAPTURE = """
import torch
from vigneron import api
from vigneron.policy import cuda_graphs
from vigneron.policy.cuda_graphs import CudaGraphs
from vigneron.training.memory import clear_memory

device = torch.device("cuda")
graphs = CudaGraphs(device)
for rows in (100, 1000, 3000, 200):
    given = torch.randn(rows, 64)
    for _ in range(3):  # run, captured, replayed
        result = graphs.run(rows, lambda x: (x @ x.T).relu(), [given])
    expected = (given.double() @ given.double().T).relu().to(device)
    torch.testing.assert_close(result.double(), expected, atol=1e-3, rtol=0)
    del result
    graphs.clear()
from vigneron.policy.cuda_graphs import release_pools
before = torch.cuda.memory_reserved()
release_pools()
torch.cuda.empty_cache()
assert torch.cuda.memory_reserved() < before - 2**25, (torch.cuda.memory_reserved(), before)
for _ in range(3):  # into a new pool
    result = graphs.run(rows, lambda x: (x @ x.T).relu(), [given])
torch.testing.assert_close(result.double(), expected, atol=1e-3, rtol=0)
print("captured", graphs.available)
"""


@pytest.mark.parametrize("setting", ["expandable_segments:True", "expandable_segments:False"])
def test_graphs_are_captured_after_all_others_were_freed(setting: str) -> None:
    path = os.pathsep.join([str(TESTS.parent / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": setting, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", CAPTURE_FREE_CAPTURE], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.stdout.strip() == "captured True", done.stderr[-2000:]


def test_graphs_that_are_garbage_are_not_destroyed_during_a_capture() -> None:
    device = torch.device("cuda")
    given = torch.randn(64, 64)

    def graphs_of(size: int) -> CudaGraphs:
        graphs = CudaGraphs(device)
        for _ in range(2):  # run, captured
            graphs.run(size, lambda x: x @ x.T, [given])
        return graphs

    graphs = graphs_of(1)
    graphs.itself = graphs  # type: ignore[attr-defined]  # only the collector finds it
    del graphs

    def product(x: torch.Tensor) -> torch.Tensor:
        objects = [[i] for i in range(10_000)]  # more than the collector waits for
        return x @ x.T * (len(objects) / 10_000)

    again = CudaGraphs(device)
    for _ in range(3):
        result = again.run("product", product, [given])
    torch.testing.assert_close(result.cpu(), given @ given.T, atol=1e-3, rtol=1e-3)


def test_a_run_that_is_over_keeps_no_graphs_and_no_gradients(tmp_path: Path, tiny_folder: Path) -> None:
    """Graphs of passes are large, and nobody can have their memory while one graph of their pool is left."""
    config = (f"model.name={tiny_folder}", "model.compile=false", "steps=6", "eval_every=6")
    for name in ("first", "second"):
        run = api.train("grpo-antonyms", *config, name=name, runs=tmp_path)
        gc.collect()
        assert cuda_graphs._pools, "it had some"
        assert not cuda_graphs._captured
        assert all(weight.grad is None for weight in run.policy.model.parameters())
        clear_memory()  # as the next run does, while this one's model is held
        assert not cuda_graphs._pools
        assert run.sample(["a"], max_new_tokens=4)
