"""The best of a group, and its best and worst, by hand."""

import pytest
import torch

from vigneron.core.selection import best_and_worst, best_of_group

NAN = float("nan")
REWARDS = torch.tensor([0.2, 0.9, 0.9, NAN, 0.4, 0.4, NAN, NAN])
GROUPS = torch.tensor([7, 7, 7, 7, 3, 3, 5, 5])


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, [1, 4]),  # of equals the first; what is missing is never kept
        ({"keep": 2}, [1, 2, 4, 5]),
        ({"keep": 3}, [0, 1, 2, 4, 5]),
        ({"min_reward": 0.5}, [1]),
        ({"keep": 3, "min_reward": 0.4}, [1, 2, 4, 5]),
        ({"min_reward": 2.0}, []),
    ],
)
def test_the_best_of_a_group(options: dict[str, float], wanted: list[int]) -> None:
    kept = best_of_group(REWARDS.double(), GROUPS, **options)  # type: ignore[arg-type]
    assert kept.nonzero()[:, 0].tolist() == wanted


def test_groups_stand_in_any_order() -> None:
    order = torch.tensor([4, 1, 7, 0, 5, 3, 2, 6])
    kept = best_of_group(REWARDS[order], GROUPS[order])
    assert sorted(order[kept].tolist()) == [1, 4]


def test_the_best_and_the_worst() -> None:
    assert best_and_worst(REWARDS, GROUPS) == [(1, 0)]
    assert best_and_worst(torch.tensor([1.0, 1.0, 0.0, 0.0]), torch.zeros(4).long()) == [(0, 3)]
