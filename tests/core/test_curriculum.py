"""Which rows a curriculum draws: levels by a uniform number, the easiest share, weighted orders."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vigneron.core.curriculum import draw_levels, easiest, level_probabilities, weighted_order
from vigneron.core.draws import keyed_uniform

SCHEDULES = ("classical", "balanced", "cosine", "gaussian")


@given(st.sampled_from(SCHEDULES), st.floats(0, 1), st.integers(1, 12), st.floats(0.05, 5))
def test_every_schedule_is_a_distribution(kind: str, progress: float, levels: int, sigma: float) -> None:
    drawn = level_probabilities(kind, progress, levels, sigma=sigma)  # type: ignore[arg-type]
    assert float(drawn.sum()) == pytest.approx(1)
    assert (drawn >= 0).all()
    if kind == "balanced":
        assert drawn.tolist() == [1 / levels] * levels
    if kind == "classical":
        assert sorted(drawn.tolist()) == [0.0] * (levels - 1) + [1.0]


def test_a_level_is_drawn_where_the_number_falls() -> None:
    probabilities = torch.tensor([0.0, 0.25, 0.0, 0.75, 0.0], dtype=torch.float64)
    uniform = torch.tensor([0.0, 0.2, 0.25, 0.9, 1 - 2.0**-53], dtype=torch.float64)
    assert draw_levels(probabilities, uniform).tolist() == [1, 1, 3, 3, 3]


def test_the_easiest_share() -> None:
    """⌈0.5 · 5⌉ = 3 rows; of the two with loss 1, the one with the lower tie-breaker; NaN is the hardest."""
    losses = torch.tensor([1.0, 0.5, math.nan, 1.0, 0.1])
    ties = torch.tensor([0.9, 0.5, 0.0, 0.1, 0.5])
    assert easiest(losses, 0.5, ties).tolist() == [4, 1, 3]
    assert easiest(losses, 1.0, ties).tolist() == [4, 1, 3, 0, 2]
    assert easiest(losses, 0.01, ties).tolist() == [4]


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=20), st.integers(0, 10**6), st.data())
def test_a_weighted_order_is_a_permutation(weights: list[float], seed: int, data: st.DataObject) -> None:
    first = data.draw(st.lists(st.booleans(), min_size=len(weights), max_size=len(weights)))
    uniform = keyed_uniform(seed, 0, torch.arange(len(weights)), 0)
    order = weighted_order(torch.tensor(weights).double(), torch.tensor(first), uniform).tolist()
    assert sorted(order) == list(range(len(weights)))
    assert [first[i] for i in order] == sorted(first, reverse=True)


@pytest.mark.slow
def test_weights_are_the_chance_to_come_first() -> None:
    """Weights 1, 1 and 0.1: the last one comes first in 0.1/2.1 of the draws."""
    weights, first = torch.tensor([1.0, 1.0, 0.1]).double(), torch.zeros(3, dtype=torch.bool)
    orders = [weighted_order(weights, first, keyed_uniform(0, t, torch.arange(3), 0)).tolist() for t in range(1500)]
    shares = [sum(order[0] == i for order in orders) / len(orders) for i in range(3)]
    assert shares == pytest.approx([1 / 2.1, 1 / 2.1, 0.1 / 2.1], abs=0.03)
