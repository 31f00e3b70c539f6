"""CUDA graphs of functions on tensors with fixed addresses; on other devices the functions run directly.

Replaying a graph is one launch where the function makes a thousand. All graphs of a device share one memory pool and
may overwrite each other's results, so a result must be used before another graph is replayed.
"""

import gc
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from vigneron.timing import inner_phase

# Each shape keeps its inputs and its result in memory: the least recently used one is dropped beyond this number.
MAX_SHAPES = 24


def round_up(number: int, step: int) -> int:
    return -(-number // step) * step


def round_to_bucket(count: int, *, per_doubling: int = 4, smallest_step: int = 1) -> int:
    """Round up to one of `per_doubling` sizes between powers of two, so that shapes repeat and can be graphs."""
    return round_up(count, max(smallest_step, 2 ** (count.bit_length() - 1) // per_doubling))


_captured: WeakSet[Any] = WeakSet()
"""The graphs that somebody holds."""
_pools: dict[torch.device, tuple[Any, Any]] = {}
"""By device: the pool, and a small graph that keeps it in use: torch's expandable segments cannot be captured into
again after all graphs of a pool are gone."""


class CudaGraphs:
    """One graph for each key."""

    def __init__(self, device: torch.device, *, available: bool = True) -> None:
        self.available = available and device.type == "cuda"
        self._device = device
        self._steps: dict[Hashable, Any] = {}
        self._calls: OrderedDict[Hashable, tuple[Any, list[Tensor], Tensor]] = OrderedDict()
        self._seen: set[Hashable] = set()

    def clear(self) -> None:
        self._steps.clear()
        self._calls.clear()
        self._seen.clear()

    def run_step(self, key: Hashable, step: Callable[[], None], state: Sequence[Tensor]) -> None:
        """Run `step()`, which changes `state` in place, once. It is captured at its first call."""
        if not self.available:
            step()
            return
        if key not in self._steps:
            before = [tensor.clone() for tensor in state]
            warm_up(step, self._device)
            for tensor, value in zip(state, before, strict=True):  # undo the changes of the warm-up
                tensor.copy_(value)
            self._steps[key], _ = capture(step, self._device)
        self._steps[key].replay()

    def run(self, key: Hashable, function: Callable[..., Tensor], inputs: Sequence[Tensor]) -> Tensor:
        """`function(*inputs)`, captured at the second call with the same key."""
        if not self.available or key not in self._seen:
            self._seen.add(key)
            return function(*(tensor.to(self._device) for tensor in inputs))
        if key not in self._calls:
            buffers = [tensor.to(self._device).clone() for tensor in inputs]
            warm_up(lambda: function(*buffers), self._device)
            graph, result = capture(lambda: function(*buffers), self._device)
            _keep(self._calls, key, (graph, buffers, result))
        self._calls.move_to_end(key)
        graph, buffers, result = self._calls[key]
        _fill(buffers, inputs)
        graph.replay()
        return result


class GraphedTrunk:
    """A model's trunk with one graph for the forward pass and one for the backward pass, for each input shape.

    The backward pass accumulates gradients into fixed buffers. It is recorded on stand-in parameters that share the
    weights' memory, because the autograd state of the weights themselves belongs to another stream.
    """

    def __init__(self, weights: dict[str, nn.Parameter]) -> None:
        self._weights = list(weights.values())
        self.stand_ins = {name: nn.Parameter(weight.detach()) for name, weight in weights.items()}
        self.buffers: list[Tensor] = []
        self._shapes: OrderedDict[Hashable, _Shape] = OrderedDict()
        self._seen: set[Hashable] = set()
        self._hook = torch.zeros((), device=self._weights[0].device, requires_grad=True)

    def __call__(self, key: Hashable, inputs: Sequence[Tensor], forward: Callable[..., Tensor]) -> Tensor:
        """`forward(*inputs)`, which takes other `weights` by keyword."""
        if key not in self._seen:
            self._seen.add(key)
            return forward(*inputs)
        if not self.buffers:
            self.buffers = [torch.zeros_like(weight) for weight in self._weights]
        if key not in self._shapes:
            _keep(self._shapes, key, _Shape(self, forward, inputs))
        self._shapes.move_to_end(key)
        shape = self._shapes[key]
        _fill(shape.inputs, inputs)
        return _Replay.apply(self._hook, shape, self)

    def attach_gradients(self) -> None:
        """Make the buffers the weights' `.grad`, keeping gradients accumulated elsewhere."""
        fresh = []
        for weight, buffer in zip(self._weights, self.buffers, strict=True):
            if weight.grad is None:
                fresh.append(buffer)
            elif weight.grad is not buffer:
                buffer.copy_(weight.grad)
            weight.grad = buffer
        if fresh:
            torch._foreach_zero_(fresh)


class _Shape:
    def __init__(self, trunk: GraphedTrunk, function: Callable[..., Tensor], inputs: Sequence[Tensor]) -> None:
        device = inputs[0].device
        self.inputs = [tensor.clone() for tensor in inputs]
        leaves = list(trunk.stand_ins.values())

        def forward() -> Tensor:
            return function(*self.inputs, weights=trunk.stand_ins)

        def both() -> None:
            hidden = forward()
            torch.autograd.grad(hidden, leaves, torch.zeros_like(hidden), allow_unused=True)

        torch.cuda.empty_cache()  # a warm-up, on a stream of its own, cannot use the blocks that passes have freed
        warm_up(both, device)
        self.forward, hidden = capture(forward, device)
        self.to_hidden = torch.zeros_like(hidden)

        def back() -> None:
            grads = torch.autograd.grad(hidden, leaves, self.to_hidden, allow_unused=True)
            pairs = [(buffer, grad) for buffer, grad in zip(trunk.buffers, grads, strict=True) if grad is not None]
            torch._foreach_add_([buffer for buffer, _ in pairs], [grad for _, grad in pairs])

        self.backward, _ = capture(back, device)
        self.hidden = hidden.detach()


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hook: Tensor, shape: _Shape, trunk: GraphedTrunk) -> Tensor:
        ctx.shape, ctx.trunk = shape, trunk
        shape.forward.replay()
        return shape.hidden.view_as(shape.hidden)

    @staticmethod
    def backward(ctx: Any, *to_hidden: Tensor) -> tuple[None, None, None]:
        ctx.trunk.attach_gradients()
        ctx.shape.to_hidden.copy_(to_hidden[0])
        ctx.shape.backward.replay()
        return None, None, None


def _keep(graphs: OrderedDict[Hashable, Any], key: Hashable, graph: Any) -> None:
    graphs[key] = graph
    while len(graphs) > MAX_SHAPES:
        graphs.popitem(last=False)


def warm_up(function: Callable[[], Any], device: torch.device) -> None:
    """Call the function twice on a side stream, to compile, allocate and choose kernels."""
    stream = _stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(2):
            function()
    torch.cuda.current_stream(device).wait_stream(stream)


def capture(function: Callable[[], Any], device: torch.device) -> tuple[Any, Any]:
    pool = _pool(device)
    with inner_phase("capture"):
        graph, result = _capture(function, device, pool)
    _captured.add(graph)
    return graph, result


def _capture(function: Callable[[], Any], device: torch.device, pool: Any) -> tuple[Any, Any]:
    graph = torch.cuda.CUDAGraph()
    with (
        no_collections(),
        torch.cuda.graph(graph, pool=pool, stream=_stream(device), capture_error_mode="thread_local"),
    ):
        result = function()
    return graph, result


def release_pools() -> None:
    """Let torch give back the memory of graphs that are all gone, those of an earlier run of this process. Until then
    it is kept for the next graphs, and nothing else can have it."""
    if not _captured:
        _pools.clear()


@contextmanager
def no_collections() -> Iterator[None]:
    """Python's garbage collector does not run in this block: it may find another run's graphs, and to destroy a graph
    ends a capture in an error."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _pool(device: torch.device) -> Any:
    if device not in _pools:
        pool = torch.cuda.graph_pool_handle()
        _pools[device] = pool, _capture(lambda: torch.zeros(1, device=device), device, pool)
    return _pools[device][0]


@cache
def _stream(device: torch.device) -> Any:
    """One stream for all warm-ups and captures: autograd remembers the stream of a tensor."""
    return torch.cuda.Stream(device)


def _fill(buffers: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
    for buffer, tensor in zip(buffers, inputs, strict=True):
        buffer.copy_(tensor if tensor.device == buffer.device else tensor.pin_memory(), non_blocking=True)
