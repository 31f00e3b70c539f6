"""Gradients in bfloat16 summed over microbatches."""

import pytest
import torch
from torch import Tensor, nn

from vigneron.training.gradient_sums import gradient_sums


def accumulated(parts: list[Tensor], *, seed: int = 0, update: int = 0, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """The gradient of Σ ⟨part, w⟩, one backward pass for each part."""
    weight = nn.Parameter(torch.zeros_like(parts[0], dtype=dtype))
    with gradient_sums([("w", weight)], seed=seed, update=update) as sums:
        for part in parts:
            sums.before_backward()
            (part.to(dtype) * weight).sum().backward()
    assert weight.grad is not None
    assert not weight._post_accumulate_grad_hooks
    return weight.grad


def test_small_contributions_are_kept_on_average() -> None:
    """1 + 50 times 2⁻¹⁰, an eighth of the distance to the next value: 1.049."""
    parts = [torch.ones(4096), *[torch.full((4096,), 2.0**-10)] * 50]
    plain = nn.Parameter(torch.zeros(4096, dtype=torch.bfloat16))
    for part in parts:
        (part.to(torch.bfloat16) * plain).sum().backward()
    assert plain.grad is not None
    assert torch.equal(plain.grad, torch.ones_like(plain))
    summed = accumulated(parts)
    assert summed.dtype == torch.bfloat16
    # 50 draws of a standard deviation of at most 2⁻⁸: of their mean over 4,096, at most 4.3e-4.
    assert float(summed.double().mean()) == pytest.approx(1 + 50 / 1024, abs=2e-3)


def test_one_pass_is_not_rounded_and_draws_have_keys() -> None:
    torch.manual_seed(0)
    first, *others = torch.randn(5, 1000).to(torch.bfloat16)
    assert torch.equal(accumulated([first]), first)
    sums = [
        accumulated([first, *others], seed=seed, update=update) for seed, update in [(0, 0), (0, 0), (1, 0), (0, 1)]
    ]
    assert torch.equal(sums[0], sums[1])
    assert not torch.equal(sums[0], sums[2])
    assert not torch.equal(sums[0], sums[3])
    exact = torch.stack([first, *others]).double().sum(0)
    assert float((sums[0].double() - exact).norm() / exact.norm()) < 0.01


def test_float32_gradients_are_torch_s() -> None:
    parts = list(torch.randn(3, 50))
    plain = nn.Parameter(torch.zeros(50))
    for part in parts:
        (part * plain).sum().backward()
    assert plain.grad is not None
    assert torch.equal(accumulated(parts, dtype=torch.float32), plain.grad)


def test_gradients_that_no_hook_sees_are_added_and_their_buffer_is_left() -> None:
    """A CUDA graph writes each gradient to the same buffer, which becomes `.grad`."""
    weight = nn.Parameter(torch.zeros(8, dtype=torch.bfloat16))
    buffer = torch.empty(8, dtype=torch.bfloat16)
    with gradient_sums([("w", weight)], seed=0, update=0) as sums:
        for value in (1.0, 2.0, 4.0):
            sums.before_backward()
            assert weight.grad is None
            weight.grad = buffer.fill_(value)
    assert weight.grad is not None
    assert weight.grad is not buffer
    assert weight.grad.tolist() == [7.0] * 8


def test_hooks_are_removed_after_an_error() -> None:
    weight = nn.Parameter(torch.zeros(8, dtype=torch.bfloat16))

    def fail() -> None:
        with gradient_sums([("w", weight)], seed=0, update=0) as sums:
            for _ in range(2):
                sums.before_backward()
                weight.sum().backward()
            assert weight._post_accumulate_grad_hooks
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert not weight._post_accumulate_grad_hooks
