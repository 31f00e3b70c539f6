"""Gradients and metrics of several ranks are those of one process on the same batch, for every method."""

from pathlib import Path

import pytest

from support.ranked_comparison import CaseResults, check_near, check_the_same, of_ranks
from support.ranked_methods import ALIKE, CASES, IN_HALVES, PATHS, UNSHARDED, measured

pytestmark = pytest.mark.slow


UNLIKE = tuple(case for case in CASES if case not in ALIKE)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> CaseResults:
    place = tmp_path_factory.mktemp("alone")
    return {case: measured(case, place) for case in UNLIKE}


@pytest.fixture(scope="module")
def all_alone(alone: CaseResults, tmp_path_factory: pytest.TempPathFactory) -> CaseResults:
    place = tmp_path_factory.mktemp("all")
    return alone | {case: measured(case, place) for case in ALIKE}


def test_every_method_is_measured_and_learns(alone: CaseResults) -> None:
    """Else the others compare nothing: a gradient, missing rewards, and completions of several lengths."""
    for case, (tensors, figures) in alone.items():
        moved = [t.abs().max() for name, t in tensors.items() if ".actor." in name or ".trust." in name]
        assert max(moved) > 1e-6, case
        if "reward" in figures[0]:
            scores_all = "entropy/demonstrated" in figures[0] or "loss/discriminator" in figures[0]
            if "reward_missing" in figures[0]:  # not where rewards only measure
                assert scores_all or figures[0]["reward_missing"] > 0, case
            assert 0 < figures[0]["completions/clipped_ratio"] < 1, case


def test_two_ranks(alone: CaseResults, tmp_path: Path) -> None:
    together = of_ranks(tmp_path, 2, shard=1, cases=UNLIKE)
    assert set(together) == set(UNLIKE)
    check_the_same(alone, together)


@pytest.mark.slow
def test_copies_of_sharded_weights(alone: CaseResults, tmp_path: Path) -> None:
    """Of 4 ranks with `shard: 2`: two copies of the weights, of two parts each. Every way through them, once."""
    together = of_ranks(tmp_path, 4, 2, cases=PATHS)
    assert set(together) == set(PATHS)
    check_the_same(alone, together)


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize(("count", "shard"), [(4, 2), (2, 2), (4, 1), (4, 4)])
def test_more_ranks_and_sharded_weights(all_alone: CaseResults, tmp_path: Path, count: int, shard: int) -> None:
    together = of_ranks(tmp_path, count, shard)
    assert set(CASES) - set(together) == (set() if shard == 1 else set(UNSHARDED))
    check_the_same(all_alone, together)


@pytest.mark.slow
def test_products_in_bfloat16_with_sharded_weights(tmp_path: Path) -> None:
    """In processes of their own: a CPU without bfloat16 makes torch multiply in another way ever after."""
    alone = of_ranks(tmp_path / "alone", 1, 1, halves=True, cases=IN_HALVES)
    together = of_ranks(tmp_path / "together", 2, 2, halves=True, cases=IN_HALVES)
    assert set(together) == set(IN_HALVES)
    check_near(alone, together, share=0.01)
