"""Eq. 15 of rlmt-grape: numbers worked out by hand, and what must hold for all inputs."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nan, tensor

from vigneron.core.advantages import group_relative
from vigneron.rewards.rubric import explained_shares, grape_reward, grape_rewards

SHARES = st.floats(0.0, 1.0, allow_nan=False)


def test_two_items_by_hand() -> None:
    scores = tensor([[1.0, 0.5], [0.0, 1.0]])
    confidences = tensor([[0.8, 0.4], [0.6, 0.2]])
    # φ̄ = (0.7, 0.3), ρ = 2: R₁ = 2 (0.75·1·0.7 + 0.25·0.5·0.3) / 1.0 = 2 (0.525 + 0.0375), R₂ = 2 · 0.25·1·0.3
    found = grape_reward(scores, confidences, tensor([0.75, 0.25]))
    torch.testing.assert_close(found, tensor([1.125, 0.15]))


def test_a_perfect_answer_earns_more_than_one_unless_normalised() -> None:
    confidences = tensor([[0.9, 0.1]])
    weights = tensor([0.9, 0.1])
    # 2 (0.9·0.9 + 0.1·0.1) / 1.0
    assert grape_reward(torch.ones(1, 2), confidences, weights).item() == pytest.approx(1.64)
    assert grape_reward(torch.ones(1, 2), confidences, weights, normalise=True).item() == pytest.approx(1.0)


def test_normalised_by_hand() -> None:
    # φ̄ = (0.5, 1), ω = (0.25, 0.75): (0.25·0.2·0.5 + 0.75·0.6·1) / (0.125 + 0.75)
    found = grape_reward(tensor([[0.2, 0.6]]), tensor([[0.5, 1.0]]), tensor([0.25, 0.75]), normalise=True)
    assert found.item() == pytest.approx(0.475 / 0.875)


def test_equal_confidences_give_the_weighted_mean() -> None:
    scores = tensor([[0.1, 0.9, 0.4]])
    weights = tensor([0.5, 0.3, 0.2])
    # ρ Σ ω τ φ / (ρ φ)
    assert grape_reward(scores, torch.full((1, 3), 0.3), weights).item() == pytest.approx(0.05 + 0.27 + 0.08)


def test_an_item_missing_in_a_group_leaves_that_groups_rubric() -> None:
    scores = tensor([[1.0, nan, 0.5], [0.0, 0.8, 1.0], [0.4, 0.6, 0.2]])
    confidences = tensor([[0.5, nan, 0.5], [0.5, 0.9, 0.5], [0.5, 0.7, 0.5]])
    group = tensor([7, 7, 3])
    found = grape_reward(scores, confidences, tensor([0.5, 0.25, 0.25]), group)
    # φ̄ = (0.5, 0.8, 0.5). Group 7 keeps items 1 and 3, ω = (2/3, 1/3), ρ = 2, equal φ̄: the weighted mean.
    # Group 3 keeps all: 3 (0.5·0.4·0.5 + 0.25·0.6·0.8 + 0.25·0.2·0.5) / 1.8
    expected = [2 / 3 * 1.0 + 1 / 3 * 0.5, 1 / 3, 3 * (0.1 + 0.12 + 0.025) / 1.8]
    torch.testing.assert_close(found, tensor(expected))


def test_without_groups_all_are_one() -> None:
    scores = tensor([[1.0, nan], [0.0, 0.8]])
    found = grape_reward(scores, torch.where(scores.isnan(), nan, 1.0), tensor([0.5, 0.5]))
    torch.testing.assert_close(found, tensor([1.0, 0.0]))


def test_nothing_left_and_no_confidence_are_missing() -> None:
    lost = grape_reward(tensor([[nan], [0.5]]), tensor([[nan], [1.0]]), tensor([1.0]), tensor([0, 1]))
    assert lost[0].isnan()
    assert lost[1].item() == 0.5
    assert grape_reward(tensor([[0.7]]), tensor([[0.0]]), tensor([1.0])).isnan().all()


def test_a_lost_sample_is_out_of_the_baseline() -> None:
    scores = tensor([[nan], [0.2], [0.6]])
    reward = grape_reward(scores, torch.ones(3, 1), tensor([1.0]), tensor([0, 1, 1]))
    torch.testing.assert_close(group_relative(reward, tensor([0, 1, 1])), tensor([0.0, -0.2, 0.2]))


def test_one_item_of_a_reward_model_is_its_score() -> None:
    """GRPO as the special case (§6.1): one item, confidence 1, scores of any size."""
    scores = tensor([[-3.5], [12.0], [0.25]])
    assert torch.equal(grape_reward(scores, torch.ones(3, 1), tensor([1.0]), tensor([0, 0, 0])), scores[:, 0])


def test_contributions_add_up_and_their_shares_to_one() -> None:
    scores = tensor([[1.0, 0.5], [0.0, 0.5], [0.5, 0.0], [0.5, 1.0]])
    group = tensor([0, 0, 1, 1])
    found = grape_rewards(scores, torch.ones(4, 2), tensor([0.75, 0.25]), group)
    torch.testing.assert_close(found.contributions_BJ.sum(1), found.rewards_B)
    # Centred: item 1 ±0.375 in group 0, item 2 ∓0.125 in group 1, nothing else.
    shares = explained_shares(found.contributions_BJ, group)
    torch.testing.assert_close(shares, tensor([0.375**2, 0.125**2]) / (0.375**2 + 0.125**2))


def test_no_difference_explains_nothing() -> None:
    assert explained_shares(torch.ones(2, 3), tensor([0, 0])).isnan().all()


@st.composite
def scored(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    samples, items = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    missing = st.booleans() if draw(st.booleans()) else st.just(False)
    rows = [[(draw(SHARES), draw(SHARES), draw(missing)) for _ in range(items)] for _ in range(samples)]
    scores = tensor([[nan if gone else score for score, _, gone in row] for row in rows], dtype=torch.float64)
    confidences = tensor([[nan if gone else phi for _, phi, gone in row] for row in rows], dtype=torch.float64)
    weights = tensor([draw(st.floats(0.05, 1.0)) for _ in range(items)], dtype=torch.float64)
    groups = tensor([draw(st.integers(0, 2)) for _ in range(samples)])
    return scores, confidences, weights / weights.sum(), groups


@given(scored())
def test_as_the_formula_says(case: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    """Against plain loops over Python's own numbers."""
    scores, confidences, weights, groups = (values.tolist() for values in case)
    items = range(len(weights))
    found = grape_reward(*case).tolist()
    for i, group in enumerate(groups):
        mates = [k for k, other in enumerate(groups) if other == group]
        kept = [j for j in items if not any(math.isnan(scores[k][j]) for k in mates)]
        mean = {j: _mean([row[j] for row in confidences if not math.isnan(row[j])]) for j in kept}
        if not kept or sum(mean.values()) <= 1e-300:
            assert math.isnan(found[i]) or sum(mean.values()) > 0
            continue
        whole = sum(weights[j] for j in kept)
        above = sum(weights[j] / whole * scores[i][j] * mean[j] for j in kept)
        assert found[i] == pytest.approx(len(kept) * above / sum(mean.values()), rel=1e-9, abs=1e-12)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


@given(scored(), st.randoms(use_true_random=False))
def test_order_does_not_matter(case: tuple[Tensor, Tensor, Tensor, Tensor], random: object) -> None:
    scores, confidences, weights, groups = case
    rows, columns = list(range(len(scores))), list(range(len(weights)))
    random.shuffle(rows)  # type: ignore[attr-defined]
    random.shuffle(columns)  # type: ignore[attr-defined]
    shuffled = grape_reward(scores[rows][:, columns], confidences[rows][:, columns], weights[columns], groups[rows])
    torch.testing.assert_close(shuffled, grape_reward(*case)[rows], equal_nan=True)


@given(scored())
def test_normalised_rewards_lie_between_the_lowest_and_the_highest_score(
    case: tuple[Tensor, Tensor, Tensor, Tensor],
) -> None:
    found = grape_reward(*case, normalise=True)
    present = found[~found.isnan()]
    assert ((present >= -1e-12) & (present <= 1 + 1e-12)).all()
