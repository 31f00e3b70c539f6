"""A reference in pinned host memory: the GPU has its weights only during its pass, and a run the same bits."""

from pathlib import Path
from typing import Any

import pytest
import torch

from support.small_batch import batch_of
from support.tiny_models import tiny_model
from support.tiny_runs import final_state, tiny_config, write_data
from vigneron import api
from vigneron.core.draws import Sampling
from vigneron.policy.load import make_policy, speed_up
from vigneron.policy.logprobs import reference_view
from vigneron.policy.reference import Reference

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
CUDA = torch.device("cuda")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("graphs", [False, True])
def test_the_weights_are_on_the_gpu_for_the_pass_alone(dtype: torch.dtype, graphs: bool) -> None:
    """Four passes of one shape: without offloading, the third is a replayed graph."""
    policy = make_policy(tiny_model("llama").to(CUDA).eval(), None, device=CUDA, dtype=dtype)
    here, reference = Reference.of(policy), Reference.of(policy)
    for each in (here, reference):
        speed_up(policy, each, graphs=graphs, compiled=False)
    before = torch.cuda.memory_allocated()
    reference.offload()
    assert reference.host is not None
    weights = list(reference.policy.model.parameters())
    assert all(weight.device.type == "cpu" and weight.is_pinned() for weight in weights)
    freed = before - torch.cuda.memory_allocated()
    assert freed >= reference.host.bytes
    batch = batch_of([([1, 2, 3], [4, 5, 6]), ([7], [8, 9])])
    for _ in range(4):
        left = torch.cuda.memory_allocated()
        with reference.active():
            assert all(weight.is_cuda for weight in weights)
            assert torch.cuda.memory_allocated() - left == freed
        views = [reference_view(each, batch, Sampling(), keep_hidden=False) for each in (here, reference)]
        if graphs:  # a product may take another algorithm in a graph
            torch.testing.assert_close(views[0], views[1], atol=1e-3, rtol=0)
        else:
            assert torch.equal(views[0]["reference_BT"], views[1]["reference_BT"])
    assert all(weight.device.type == "cpu" for weight in weights)


@pytest.mark.parametrize("estimator", ["exact", "k3"])
def test_a_run_has_the_same_bits(tmp_path: Path, tiny_folder: Path, estimator: str) -> None:
    states = []
    for name, offload in (("here", False), ("offloaded", True)):
        (tmp_path / name).mkdir()
        model = {"name": str(tiny_folder), "device": "cuda", "graphs": False, "offload_reference": offload}
        changes: dict[str, Any] = {"method": {"name": "reinforce", "kl": {"coefficient": 0.1, "estimator": estimator}}}
        config = tiny_config(tiny_folder, write_data(tmp_path / name), model=model, steps=3, eval_every=0, **changes)
        states.append(final_state(api.train(config, name=name, runs=tmp_path / name).folder))
    for part in states[0]:
        if part != "scalars":  # has the config
            assert states[0][part] == states[1][part], part
