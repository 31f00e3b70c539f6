"""AdamW for bfloat16 weights, 8-bit moments and moments in host memory, against torch's AdamW in float64."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vigneron.core.moments import Kind, dequantize, quantize, state_bytes
from vigneron.core.rounding import round_stochastically, rounding_bits, rounding_key
from vigneron.training.adamw import CompactAdamW
from vigneron.training.optimizers import Optimized

RATE, DECAY = 1e-3, 0.1
SHAPES = {"matrix": (70, 100), "norm": (33,)}
ARMS: list[tuple[Kind, torch.dtype]] = [
    ("adamw", torch.bfloat16),
    ("adamw_8bit", torch.float32),
    ("adamw_8bit", torch.bfloat16),
]


def weights(dtype: torch.dtype, seed: int = 0) -> dict[str, nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return {name: nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for name, shape in SHAPES.items()}


def gradients(step: int, dtype: torch.dtype) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(100 + step)
    return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in SHAPES.items()}


def optimized(named: dict[str, nn.Parameter], **options: Any) -> Optimized:
    return Optimized("actor", list(named.items()), RATE, weight_decay=DECAY, **options)


def steps(player: Optimized, numbers: range, factor: float = 1.0) -> None:
    for number in numbers:
        for name, parameter in player.parameters:
            parameter.grad = gradients(number, parameter.dtype)[name]
        player.step(factor)


def in_float64(named: dict[str, nn.Parameter], numbers: range) -> tuple[dict[str, nn.Parameter], torch.optim.AdamW]:
    exact = {name: nn.Parameter(parameter.detach().double()) for name, parameter in named.items()}
    optimizer = torch.optim.AdamW(exact.values(), lr=RATE, weight_decay=DECAY)
    for number in numbers:
        for name, parameter in exact.items():
            parameter.grad = gradients(number, named[name].dtype)[name].double()
        optimizer.step()
    return exact, optimizer


def test_bfloat16_weights_are_one_of_the_two_neighbours_of_the_exact_step() -> None:
    before = weights(torch.bfloat16)
    exact, _ = in_float64(before, range(1))
    named = weights(torch.bfloat16)
    steps(optimized(named), range(1))
    moved = 0
    for name, parameter in named.items():
        key = rounding_key(0, f"actor.{name}", 1)
        expected = exact[name].detach().flatten()
        below = round_stochastically(expected.float(), torch.zeros(len(expected), dtype=torch.long)).double()
        above = round_stochastically(expected.float(), torch.full((len(expected),), 2**16 - 1)).double()
        got = parameter.detach().flatten().double()
        assert ((got == below) | (got == above)).all()
        drawn = round_stochastically(expected.float(), rounding_bits(key, 0, len(expected)))
        assert float((drawn.double() == got).double().mean()) > 0.995  # but where float32 rounded before
        moved += int((got != before[name].detach().flatten().double()).sum())
    assert moved > 0


def test_bfloat16_weights_follow_the_exact_run_on_average_with_moments_in_float32() -> None:
    """Of 8 runs with other seeds, the mean is near the run in float64; rounding to nearest is not."""
    exact, optimizer = in_float64(weights(torch.bfloat16), range(20))
    runs = []
    for seed in range(8):
        named = weights(torch.bfloat16)
        player = optimized(named, seed=seed)
        steps(player, range(20))
        runs.append(named["matrix"].detach().double())
        state = player.optimizer.state[named["matrix"]]
        for moment in ("exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(
                state[moment].double(), optimizer.state[exact["matrix"]][moment], rtol=1e-5, atol=2e-7
            )
    moved = exact["matrix"].detach() - weights(torch.bfloat16)["matrix"].detach().double()
    got = torch.stack(runs).mean(0) - weights(torch.bfloat16)["matrix"].detach().double()
    slope = float((got * moved).sum() / moved.square().sum())  # 1 if all of the movement arrives
    assert slope == pytest.approx(1, abs=0.05)
    nearest = {name: p.detach().clone() for name, p in weights(torch.bfloat16).items()}["matrix"]
    torch_run = nn.Parameter(nearest)
    plain = torch.optim.AdamW([torch_run], lr=RATE, weight_decay=DECAY)
    for number in range(20):
        torch_run.grad = gradients(number, torch.bfloat16)["matrix"]
        plain.step()
    lost = torch_run.detach().double() - weights(torch.bfloat16)["matrix"].detach().double()
    assert float((lost * moved).sum() / moved.square().sum()) < 0.8


def test_8bit_moments_by_hand_and_near_the_exact_run() -> None:
    named = weights(torch.float32)
    player = optimized(named, kind="adamw_8bit")
    steps(player, range(1))
    state = player.optimizer.state[named["matrix"]]
    grad = gradients(0, torch.float32)["matrix"].flatten()
    for moment, exact in (("exp_avg", 0.1 * grad), ("exp_avg_sq", 0.001 * grad.square())):
        codes, scale = quantize(exact, signed=moment == "exp_avg")
        assert state[moment].shape == (70, 100)
        assert float((state[moment].flatten() == codes).double().mean()) > 0.999
        torch.testing.assert_close(state[f"{moment}_scale"], scale)
    # The first step does not depend on the quantized moments, the later ones do.
    exact, _ = in_float64(weights(torch.float32), range(1))
    torch.testing.assert_close(named["matrix"].detach().double(), exact["matrix"].detach(), rtol=0, atol=1e-6)
    steps(player, range(1, 20))
    exact, _ = in_float64(weights(torch.float32), range(20))
    start = weights(torch.float32)["matrix"].detach().double()
    moved, got = exact["matrix"].detach() - start, named["matrix"].detach().double() - start
    assert float((got - moved).norm() / moved.norm()) < 0.05
    norm = player.optimizer.state[named["norm"]]
    assert norm["exp_avg"].dtype == torch.float32
    torch.testing.assert_close(named["norm"].detach().double(), exact["norm"].detach(), rtol=1e-5, atol=1e-6)


def test_a_small_gradient_beside_large_ones_takes_no_large_step() -> None:
    """Its second moment would be rounded to 0, and m/ε be millions of times the learning rate."""
    parameter = nn.Parameter(torch.zeros(4096))
    player = optimized({"w": parameter}, kind="adamw_8bit")
    grad = torch.full((4096,), 1e-5)
    grad[::256] = 1.0
    for number in range(30):
        parameter.grad = grad.clone() if number < 10 else torch.where(grad == 1, 1.0, 0.0)
        before = parameter.detach().clone()
        player.step(1.0)
        assert float((parameter.detach() - before).abs().max()) < 1.5 * RATE


@pytest.mark.parametrize(("kind", "dtype"), ARMS)
def test_the_state_has_the_bytes_that_are_said(kind: Kind, dtype: torch.dtype) -> None:
    named = weights(dtype)
    player = optimized(named, kind=kind)
    steps(player, range(1))
    for parameter in named.values():
        state = {name: tensor for name, tensor in player.optimizer.state[parameter].items() if name != "step"}
        assert sum(tensor.nbytes for tensor in state.values()) == state_bytes(kind, parameter.numel())


@pytest.mark.parametrize(("kind", "dtype"), [("adamw", torch.float32), *ARMS])
def test_offloaded_moments_and_parts_change_no_bit(
    kind: Kind, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, parts = weights(dtype), weights(dtype)
    steps(optimized(whole, kind=kind), range(4), factor=0.5)
    monkeypatch.setattr("vigneron.training.adamw.CHUNK", 512)
    player = optimized(parts, kind=kind, offload=True)
    assert isinstance(player.optimizer, CompactAdamW)
    steps(player, range(4), factor=0.5)
    for name in SHAPES:
        assert torch.equal(whole[name], parts[name])


@pytest.mark.parametrize(("kind", "dtype"), ARMS)
@pytest.mark.parametrize("offload", [False, True])
def test_a_loaded_state_continues_bit_by_bit(kind: Kind, dtype: torch.dtype, offload: bool) -> None:
    """Whatever torch's generator does in between."""
    whole, halves = weights(dtype), weights(dtype)
    steps(optimized(whole, kind=kind, seed=3), range(6))
    first = optimized(halves, kind=kind, seed=3, offload=offload)
    steps(first, range(3))
    saved = {name: tensor.clone() for name, tensor in first.tensors().items()}
    torch.manual_seed(5)
    second = optimized(halves, kind=kind, seed=3, offload=offload)
    second.load(saved)
    steps(second, range(3, 6))
    other = optimized(weights(dtype), kind=kind, seed=4)
    steps(other, range(6))
    for name, parameter in other.parameters:
        assert torch.equal(whole[name], halves[name])
        assert torch.equal(whole[name], parameter) == (dtype == torch.float32)


def test_a_state_of_the_other_kind_is_converted() -> None:
    named = weights(torch.float32)
    plain = optimized(named)
    steps(plain, range(3))
    eight_bit = optimized(named, kind="adamw_8bit")
    eight_bit.load(plain.tensors())
    state = eight_bit.optimizer.state[named["matrix"]]
    expected = quantize(plain.optimizer.state[named["matrix"]]["exp_avg"].flatten(), signed=True)
    assert torch.equal(state["exp_avg"].flatten(), expected[0])
    back = optimized(named)
    back.load(eight_bit.tensors())
    got = back.optimizer.state[named["matrix"]]
    assert torch.equal(got["exp_avg"].flatten(), dequantize(*expected, signed=True))
    assert set(got) == {"step", "exp_avg", "exp_avg_sq"}
    assert float(got["step"]) == 3
    steps(back, range(3, 4))


def test_the_norm_of_bfloat16_gradients_is_in_float32() -> None:
    named = weights(torch.bfloat16) | {"head": nn.Parameter(torch.zeros(5))}
    player = Optimized("actor", list(named.items()), RATE, max_grad_norm=1e9)
    for name, parameter in named.items():
        parameter.grad = gradients(0, torch.bfloat16)[name] if name in SHAPES else torch.ones(5)
    exact = torch.stack([p.grad.double().norm() for p in named.values()]).norm()  # type: ignore[union-attr]
    norm = player.clip()
    assert norm.dtype == torch.float32
    assert float(norm) == pytest.approx(float(exact), rel=1e-5)
    player.max_grad_norm = 1.0
    player.clip()
    clipped = torch.stack([p.grad.double().norm() for p in named.values()]).norm()  # type: ignore[union-attr]
    assert float(clipped) == pytest.approx(1, rel=1e-3)
    named["norm"].grad[0] = torch.nan  # type: ignore[index]
    assert player.clip().isnan()
