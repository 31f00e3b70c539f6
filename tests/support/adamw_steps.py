"""Steps of AdamW on weights of different sizes, for the tests of its kernels."""

from typing import Any

import torch
from torch import Tensor, nn

from support.kernels import INTERPRETED
from vigneron.core.moments import Kind
from vigneron.training.optimizers import Optimized

SHAPES = {"large": (70 if INTERPRETED else 700, 1000), "odd": (4099,), "small": (33,)}
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
    optimized = Optimized("actor", named, 1e-3, weight_decay=0.1, **options)
    for _ in range(steps):
        for _, parameter in named:
            grad = values(tuple(parameter.shape)) * 10 ** (3 * values(tuple(parameter.shape)) - 3)
            parameter.grad = grad.to(device, dtype)
        optimized.step(0.5)
    return [parameter.detach().cpu() for _, parameter in named], optimized
