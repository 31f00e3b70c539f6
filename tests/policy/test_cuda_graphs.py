"""Shapes that repeat: few numbers, never too small, never much too large; and captures that nothing disturbs."""

import gc
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vigneron.policy import cuda_graphs
from vigneron.policy.cuda_graphs import no_collections, release_pools, round_to_bucket


@given(st.integers(1, 10**6), st.sampled_from([4, 8]))
def test_a_number_is_rounded_up_a_little(count: int, per_doubling: int) -> None:
    rounded = round_to_bucket(count, per_doubling=per_doubling)
    assert count <= rounded <= count * (1 + 1 / per_doubling) + 1
    assert round_to_bucket(rounded, per_doubling=per_doubling) == rounded


def test_there_are_few_of_them() -> None:
    assert len({round_to_bucket(count) for count in range(1, 1025)}) == 4 + 4 * 8
    widths = {round_to_bucket(count, per_doubling=8, smallest_step=16) for count in range(1, 2049)}
    assert widths == {*range(16, 257, 16), *range(288, 513, 32), *range(576, 1025, 64), *range(1152, 2049, 128)}


class Cycle:
    """Garbage that only the collector finds."""

    def __init__(self) -> None:
        self.itself = self


@pytest.mark.parametrize("enabled", [True, False])
def test_nothing_is_collected_during_a_capture(enabled: bool) -> None:
    thresholds, before = gc.get_threshold(), gc.isenabled()
    gc.collect()
    gc.set_threshold(1)
    (gc.enable if enabled else gc.disable)()
    try:
        with no_collections():
            left = weakref.ref(Cycle())
            objects = [Cycle() for _ in range(100)]
            assert left() is not None
        assert gc.isenabled() == enabled
        objects += [Cycle() for _ in range(100)]
        assert (left() is None) == enabled
    finally:
        gc.set_threshold(*thresholds)
        (gc.enable if before else gc.disable)()


def test_a_pool_is_kept_until_its_graphs_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bookkeeping, without a GPU; `tests/gpu/test_graph_pool_cuda.py` has the memory."""
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    monkeypatch.setattr(cuda_graphs, "_captured", weakref.WeakSet())
    monkeypatch.setattr(cuda_graphs, "_pools", {})
    monkeypatch.setattr(cuda_graphs, "_capture", lambda function, device, pool: (Cycle(), function()))
    device = torch.device("cpu")
    first, _ = cuda_graphs.capture(lambda: 1, device)
    pool = cuda_graphs._pools[device]
    release_pools()
    assert cuda_graphs._pools[device] is pool
    del first
    gc.collect()
    second, _ = cuda_graphs.capture(lambda: 2, device)
    assert cuda_graphs._pools[device] is pool, "within a run a pool stays, though its graphs were dropped"
    del second
    gc.collect()
    release_pools()
    assert not cuda_graphs._pools
