"""AdamW on a CUDA device: streams of moments, memory, bitsandbytes, and exact resume."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from support.adamw_steps import ARMS, trained
from support.resuming import check_third_arm, drawing_reward, lose_nothing
from support.tiny_runs import tiny_config, write_data
from vigneron import api
from vigneron.core.moments import Kind
from vigneron.training.adamw import CompactAdamW
from vigneron.training.optimizers import Optimized

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
CUDA = torch.device("cuda")


@pytest.mark.parametrize(("kind", "dtype"), ARMS)
def test_moments_from_host_memory_change_no_bit(
    kind: Kind, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, _ = trained(CUDA, dtype, 4, kind=kind)
    monkeypatch.setattr("vigneron.training.adamw.CHUNK", 2**16)
    streamed, player = trained(CUDA, dtype, 4, kind=kind, offload=True)
    for got, expected in zip(streamed, here, strict=True):
        assert torch.equal(got, expected)
    for name, tensor in player.tensors().items():
        assert not tensor.is_cuda
        assert name.endswith(".step") or tensor.is_pinned()


def test_8bit_steps_are_near_those_of_bitsandbytes() -> None:
    optimizers = pytest.importorskip("bitsandbytes.optim")
    torch.manual_seed(0)
    start = torch.randn(512, 512, device=CUDA)
    ours, theirs, exact = (nn.Parameter(start.clone()) for _ in range(3))
    player = Optimized("actor", [("w", ours)], 1e-3, kind="adamw_8bit")
    others = optimizers.AdamW8bit([theirs], lr=1e-3, weight_decay=0.0), torch.optim.AdamW([exact], 1e-3, weight_decay=0)
    for _ in range(20):
        ours.grad = torch.randn_like(start)
        theirs.grad, exact.grad = ours.grad.clone(), ours.grad.clone()
        player.step(1.0)
        for other in others:
            other.step()
    moved = (exact - start).norm()
    our_error, their_error = (float((each - exact).norm() / moved) for each in (ours, theirs))
    assert our_error < 1.1 * their_error + 1e-3
    assert our_error < 0.05


def test_a_step_needs_no_memory_of_the_size_of_the_weights() -> None:
    count = 2**26
    weight = nn.Parameter(torch.zeros(count, device=CUDA, dtype=torch.bfloat16))
    optimizer = CompactAdamW([("w", weight)], lr=1e-3, weight_decay=0.0, kind="adamw_8bit")
    for _ in range(2):
        weight.grad = torch.ones_like(weight)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        optimizer.step()
    assert torch.cuda.max_memory_allocated() - before < 2**20


@pytest.mark.parametrize(
    ("weights", "optimizer"),
    [
        ("bfloat16", {}),
        ("auto", {"kind": "adamw_8bit"}),
        ("bfloat16", {"kind": "adamw_8bit"}),
        ("auto", {"offload": True}),
        ("bfloat16", {"kind": "adamw_8bit", "offload": True}),
    ],
)
def test_resumed_runs_are_exact(tmp_path: Path, tiny_folder: Path, weights: str, optimizer: dict[str, Any]) -> None:
    config = tiny_config(
        tiny_folder,
        write_data(tmp_path),
        method={"name": "grpo"},
        model={"name": str(tiny_folder), "device": "cuda", "weights": weights, "compile": False},
        reward={"kind": "python", "function": f"{drawing_reward.__module__}:drawing_reward"},
        optimizer={"actor_lr": 1e-3} | optimizer,
        steps=8,
        eval_every=0,
        microbatch_tokens=64,
    )
    whole = api.train(config, name="whole", runs=tmp_path).folder
    place = tmp_path / "other"
    place.mkdir()
    check_third_arm(whole, place, lose_nothing)
