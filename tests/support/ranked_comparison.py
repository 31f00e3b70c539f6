"""Compare gradients and metrics of several ranks with those of one process."""

import json
import math
from collections.abc import Iterable
from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch import Tensor

from support import fault_runs
from support.ranked_methods import CASES, by_rank

TOLERANCE = 1e-6
CaseResults = dict[str, tuple[dict[str, Tensor], list[dict[str, float]]]]


def of_ranks(
    place: Path, count: int, shard: int, *, device: str = "cpu", halves: bool = False, cases: Iterable[str] = CASES
) -> CaseResults:
    """Train in real processes, which rendezvous as those of `--nproc` do."""
    place.mkdir(exist_ok=True)
    logs = [place / f"rank-{rank}.log" for rank in range(count)]
    processes = [
        fault_runs.started(
            fault_runs.logged,
            str(log),
            by_rank,
            (place, shard, device, halves, tuple(cases)),
            environment=fault_runs.environment_of(rank, count, place),
        )
        for rank, log in enumerate(logs)
    ]
    assert [fault_runs.ended(process) for process in processes] == [0] * count, "\n".join(
        log.read_text()[-4000:] for log in logs
    )
    return {
        path.stem: (load_file(path), json.loads(path.with_suffix(".json").read_text()))
        for path in place.glob("*.safetensors")
    }


def check_the_same(alone: CaseResults, together: CaseResults) -> None:
    for case, (tensors, metrics) in together.items():
        expected, expected_metrics = alone[case]
        assert set(tensors) == set(expected), case
        for name, tensor in tensors.items():
            assert (tensor - expected[name]).abs().max() < TOLERANCE, (case, name)
        for step, (here, there) in enumerate(zip(metrics, expected_metrics, strict=True)):
            assert set(here) == set(there), case
            for name, value in here.items():
                same = value == pytest.approx(there[name], rel=TOLERANCE, abs=TOLERANCE)
                assert same or (math.isnan(value) and math.isnan(there[name])), (case, step, name)


def check_near(alone: CaseResults, together: CaseResults, *, share: float) -> None:
    """Check that gradients differ by at most a share of their norm."""
    for case, (tensors, _) in together.items():
        for name, tensor in tensors.items():
            expected = alone[case][0][name]
            assert (tensor - expected).norm() <= share * expected.norm(), (case, name)
