"""Sums of gradients over microbatches, for weights in bfloat16.

Added in bfloat16, a microbatch's gradient is lost where it is smaller than half a unit in the last place of the sum.
Rounded stochastically, the sum's mean is exact, and no float32 copy of the gradients exists.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from vigneron.core import rounding
from vigneron.distributed import ranks
from vigneron.policy.compiling import can_run_kernels


class GradientSums:
    """Between two backward passes, the sums are here instead of in `.grad`."""

    def __init__(self, named: Sequence[tuple[str, nn.Parameter]], seed: int, update: int) -> None:
        self._weights = [(name, weight) for name, weight in named if weight.dtype == torch.bfloat16]
        self._draws = seed, update, ranks.rank()
        self._totals: dict[str, Tensor] = {}
        self._additions: dict[str, int] = {}
        self._hooks: list[Any] = []
        self._passes = 0

    def before_backward(self) -> None:
        """Call before each backward pass. The first one's gradients stay where they are: it may be the only one."""
        self._passes += 1
        if self._passes == 1:
            return
        self._take_all()
        if self._passes == 2:  # from now on, a gradient is added and freed as soon as it is computed
            self._hooks = [
                weight.register_post_accumulate_grad_hook(lambda weight, name=name: self._take(name, weight))
                for name, weight in self._weights
            ]

    def attach(self) -> None:
        """Make the sums the weights' `.grad`."""
        if self._totals:
            self._take_all()
        for name, weight in self._weights:
            if name in self._totals:
                weight.grad = self._totals.pop(name)

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _take_all(self) -> None:
        """Passes that are replayed as CUDA graphs call no hook, and write to the same buffer again: it is copied."""
        for name, weight in self._weights:
            if weight.grad is not None:
                self._take(name, weight)

    @torch.no_grad()
    def _take(self, name: str, weight: Tensor) -> None:
        part = weight.grad
        assert part is not None
        if name in self._totals:
            self._additions[name] = self._additions.get(name, 0) + 1
            seed, *numbers = self._draws
            key = rounding.rounding_key(seed, f"gradient of {name}", *numbers, self._additions[name])
            add_rounded_(self._totals[name], part, key)
        else:
            self._totals[name] = part.clone(memory_format=torch.contiguous_format)
        weight.grad = None


@contextmanager
def gradient_sums(named: Sequence[tuple[str, nn.Parameter]], *, seed: int, update: int) -> Iterator[GradientSums]:
    sums = GradientSums(named, seed, update)
    try:
        yield sums
        sums.attach()
    finally:
        sums.close()


def add_rounded_(total: Tensor, part: Tensor, key: int) -> None:
    add: Any = rounding.add_rounded_
    if can_run_kernels(total.device):
        from vigneron.training.adamw_kernel import add_rounded_ as add
    add(total.view(-1), part.reshape(-1), key)
