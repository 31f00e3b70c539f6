"""Gradients and figures of several ranks are those of one process on the same batch, for every method."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from ranked_methods import CASES, measured
from safetensors.torch import load_file
from torch import Tensor

SCRIPT = Path(__file__).with_name("ranked_methods.py")
TOLERANCE = 1e-6
Found = dict[str, tuple[dict[str, Tensor], list[dict[str, float]]]]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Found:
    place = tmp_path_factory.mktemp("alone")
    return {case: measured(case, place) for case in CASES}


def of_ranks(place: Path, count: int, shard: int) -> Found:
    """By real processes, under torchrun."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    done = subprocess.run(
        [*torchrun, str(SCRIPT), str(place), str(shard)],
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
        cwd=SCRIPT.parent,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return {
        path.stem: (load_file(path), json.loads(path.with_suffix(".json").read_text()))
        for path in place.glob("*.safetensors")
    }


def check_the_same(alone: Found, together: Found) -> None:
    for case, (tensors, figures) in together.items():
        expected, said = alone[case]
        assert set(tensors) == set(expected), case
        for name, tensor in tensors.items():
            assert (tensor - expected[name]).abs().max() < TOLERANCE, (case, name)
        for step, (here, there) in enumerate(zip(figures, said, strict=True)):
            assert set(here) == set(there), case
            for name, value in here.items():
                same = value == pytest.approx(there[name], rel=TOLERANCE, abs=TOLERANCE)
                assert same or (math.isnan(value) and math.isnan(there[name])), (case, step, name)


def test_every_method_is_measured_and_learns(alone: Found) -> None:
    """Else the others compare nothing: a gradient, missing rewards, and completions of several lengths."""
    for case, (tensors, figures) in alone.items():
        moved = [t.abs().max() for name, t in tensors.items() if ".actor." in name or ".trust." in name]
        assert max(moved) > 1e-6, case
        if "reward" in figures[0]:
            assert figures[0]["reward_missing"] > 0, case
            assert 0 < figures[0]["completions/clipped_ratio"] < 1, case


def test_two_ranks(alone: Found, tmp_path: Path) -> None:
    together = of_ranks(tmp_path, 2, shard=1)
    assert set(together) == set(CASES)
    check_the_same(alone, together)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "shard"), [(4, 2), *(pytest.param(*each, marks=pytest.mark.cluster) for each in [(2, 2), (4, 1), (4, 4)])]
)
def test_more_ranks_and_sharded_weights(alone: Found, tmp_path: Path, count: int, shard: int) -> None:
    """4 ranks with `shard: 2` are two copies of the weights, of two parts each."""
    together = of_ranks(tmp_path, count, shard)
    assert set(CASES) - set(together) == (set() if shard == 1 else {"trpo, constraint"})
    check_the_same(alone, together)
