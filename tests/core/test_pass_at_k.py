"""pass@k: by hand, against every choice of k samples, and its interval."""

from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vigneron.core.intervals import bootstrap_interval
from vigneron.core.pass_at_k import pass_at_k


def test_by_hand() -> None:
    """n = 4, c = 1: 1 − C(3, 2) / C(4, 2) = 1 − 3/6. c = 2: 1 − 1/6. c = 3: no two wrong samples, 1."""
    assert pass_at_k(torch.tensor([0, 1, 2, 3, 4]), samples=4, k=2).tolist() == pytest.approx([0, 0.5, 5 / 6, 1, 1])
    assert pass_at_k(torch.tensor([3]), samples=12, k=1).tolist() == pytest.approx([0.25])


def test_prompts_may_have_unequal_numbers_of_samples() -> None:
    correct_P, samples_P = torch.tensor([1, 2, 0, 3]), torch.tensor([4, 3, 2, 3])
    each = [float(pass_at_k(c[None], samples=int(n), k=2)) for c, n in zip(correct_P, samples_P, strict=True)]
    assert each == pytest.approx([0.5, 1, 0, 1])
    assert pass_at_k(correct_P, samples=samples_P, k=2).tolist() == each


@given(st.integers(1, 9), st.data())
def test_it_is_the_mean_over_all_choices_of_k_samples(samples: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, samples))
    verdicts = data.draw(st.lists(st.booleans(), min_size=samples, max_size=samples))
    choices = list(combinations(verdicts, k))
    expected = sum(any(choice) for choice in choices) / len(choices)
    assert pass_at_k(torch.tensor([sum(verdicts)]), samples=samples, k=k).tolist() == pytest.approx([expected])


def test_large_numbers_do_not_overflow() -> None:
    """C(10000, 5000) has 3,000 digits. With one correct sample of n, pass@k is k/n."""
    assert pass_at_k(torch.tensor([1]), samples=10_000, k=5_000).tolist() == pytest.approx([0.5])


@pytest.mark.parametrize("k", [0, 5])
def test_k_outside_of_the_samples_is_refused(k: int) -> None:
    with pytest.raises(ValueError, match="between 1 and the number of samples, 4"):
        pass_at_k(torch.tensor([1]), samples=4, k=k)


def test_the_interval_is_the_means_spread() -> None:
    """Of 400 values, half 0 and half 1, the mean's standard error is 0.5/√400 = 0.025: 0.5 ± 1.96 · 0.025."""
    values = torch.tensor([0.0, 1.0] * 200, dtype=torch.float64)
    low, high = bootstrap_interval(values, seed=3)
    assert (low, high) == pytest.approx((0.451, 0.549), abs=0.006)
    assert bootstrap_interval(values, seed=3) == (low, high) != bootstrap_interval(values, seed=4)
    assert bootstrap_interval(torch.full((9,), 0.3, dtype=torch.float64)) == pytest.approx((0.3, 0.3))
