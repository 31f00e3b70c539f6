"""Two ranks that share a GPU over NCCL compute the same gradients and metrics as one process."""

from pathlib import Path

import pytest
import torch

from support.ranked_comparison import CaseResults, check_near, check_the_same, of_ranks
from support.ranked_methods import CASES, IN_HALVES, UNSHARDED, measured

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> CaseResults:
    place = tmp_path_factory.mktemp("alone")
    return {case: measured(case, place, device="cuda") for case in CASES}


@pytest.mark.parametrize("shard", [1, 2])
def test_every_method_by_two_ranks(alone: CaseResults, tmp_path: Path, shard: int) -> None:
    together = of_ranks(tmp_path, 2, shard, device="cuda")
    assert set(CASES) - set(together) == (set() if shard == 1 else set(UNSHARDED))
    check_the_same(alone, together)


@pytest.mark.parametrize("shard", [1, 2])
def test_products_in_bfloat16(tmp_path: Path, shard: int) -> None:
    alone = of_ranks(tmp_path / "alone", 1, 1, device="cuda", halves=True, cases=IN_HALVES)
    together = of_ranks(tmp_path / "together", 2, shard, device="cuda", halves=True, cases=IN_HALVES)
    assert set(together) == set(IN_HALVES)
    check_near(alone, together, share=0.02)
