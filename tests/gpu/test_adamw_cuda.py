"""The update's kernels on a CUDA device against the equations in torch, streams of moments, and exact resume."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from support.resuming import check_third_arm, drawing_reward, lose_nothing
from support.tiny_runs import tiny_config, write_data
from vigneron import api
from vigneron.core import rounding
from vigneron.core.moments import Kind
from vigneron.policy.compiling import has_triton
from vigneron.training.adamw import CompactAdamW
from vigneron.training.optimizers import Optimized

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
CUDA = torch.device("cuda")
SHAPES = {"large": (700, 1000), "odd": (4099,), "small": (33,)}
ARMS: list[tuple[Kind, torch.dtype]] = [
    ("adamw", torch.float32),
    ("adamw", torch.bfloat16),
    ("adamw_8bit", torch.float32),
    ("adamw_8bit", torch.bfloat16),
]


def trained(device: torch.device, dtype: torch.dtype, steps: int, **options: Any) -> tuple[list[Tensor], Optimized]:
    """The weights after so many steps with gradients of very different sizes."""
    generator = torch.Generator().manual_seed(0)

    def values(shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=generator)

    named = [(name, nn.Parameter(values(shape).to(device, dtype))) for name, shape in SHAPES.items()]
    player = Optimized("actor", named, 1e-3, weight_decay=0.1, **options)
    for _ in range(steps):
        for _, parameter in named:
            grad = values(tuple(parameter.shape)) * 10 ** (3 * values(tuple(parameter.shape)) - 3)
            parameter.grad = grad.to(device, dtype)
        player.step(0.5)
    return [parameter.detach().cpu() for _, parameter in named], player


@pytest.mark.parametrize(("kind", "dtype"), ARMS)
def test_the_kernel_computes_the_equations(kind: Kind, dtype: torch.dtype) -> None:
    """The same draws and codes as on the CPU, but where rounding in float32 decides. What is in float32 altogether is
    torch's fused AdamW, which takes 1 − β₂ in float32 on a GPU: 1.3e-5 of it."""
    assert has_triton()
    (here, player), (there, other) = (trained(device, dtype, 1, kind=kind) for device in (CUDA, torch.device("cpu")))
    for got, expected in zip(here, there, strict=True):
        if dtype == torch.float32:
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)
        else:
            assert float((got == expected).double().mean()) > 0.99
            torch.testing.assert_close(got.float(), expected.float(), rtol=2.0**-7, atol=1e-6)
    expected_state = other.tensors()
    for name, tensor in player.tensors().items():
        if tensor.dtype == torch.uint8:
            difference = (tensor.cpu().int() - expected_state[name].int()).abs()
            assert int(difference.max()) <= 1
            assert float((difference == 0).double().mean()) > 0.999
        else:
            torch.testing.assert_close(tensor.cpu(), expected_state[name], rtol=2e-5, atol=1e-30)


def test_rounded_sums_are_those_of_the_cpu() -> None:
    from vigneron.training.adamw_kernel import add_rounded_

    torch.manual_seed(0)
    total, part = torch.randn(2, 100_003).to(torch.bfloat16)
    here = total.to(CUDA)
    add_rounded_(here, part.to(CUDA), 2**62 + 5)
    rounding.add_rounded_(total, part, 2**62 + 5)
    assert torch.equal(here.cpu(), total)


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
