"""Likelihood, cross-entropy, importance sampling and Lemma 8.1 (§8): numbers by hand, and what holds for all."""

import math
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vigneron.core.draws import entropy
from vigneron.core.information import (
    cross_entropy,
    importance_estimate,
    likelihood,
    negative_log_likelihood,
    variance_of_mean,
)
from vigneron.core.kl import exact
from vigneron.core.losses import nll

INF = math.inf
quick = settings(max_examples=100, deadline=None)


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def logs(*probabilities: float) -> Tensor:
    return numbers(*probabilities).log()


@st.composite
def distributions(draw: st.DrawFn, count: int, *, zeros: bool = False) -> list[Tensor]:
    """Log-probs over the same categories; with `zeros`, some of probability 0."""
    size = draw(st.integers(2, 5))
    weight = st.one_of(st.just(0.0), st.floats(0.05, 1)) if zeros else st.floats(0.05, 1)
    many = [draw(st.lists(weight, min_size=size, max_size=size).filter(any)) for _ in range(count)]
    return [(numbers(*weights) / sum(weights)).log() for weights in many]


def test_likelihood_by_hand() -> None:
    # ½ · ¼ · ¼ = 1/32.
    assert float(likelihood(logs(0.5, 0.25, 0.25))) == pytest.approx(1 / 32)
    assert float(negative_log_likelihood(logs(0.5, 0.25, 0.25))) == pytest.approx(math.log(32))
    # The paper's sentence of nine tokens, each 1 of 32,000: 2.84e-41, and 9 · 10.37.
    sentence = logs(*[1 / 32000] * 9)
    assert float(likelihood(sentence)) == pytest.approx(2.84e-41, rel=1e-3)
    assert float(negative_log_likelihood(sentence)) == pytest.approx(9 * 10.37, abs=0.05)


@quick
@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=8))
def test_the_nll_is_that_of_the_likelihood_and_the_sum_of_the_losss_tokens(probabilities: list[float]) -> None:
    logprobs = logs(*probabilities)
    total = negative_log_likelihood(logprobs)
    torch.testing.assert_close(total, -likelihood(logprobs).log())
    torch.testing.assert_close(total, nll(logprobs[None]).sum())  # eq. 1


def test_cross_entropy_by_hand() -> None:
    # −½ ln ¼ − ½ ln ¾ = ½ ln(16/3); of a coin with itself ln 2; what p excludes adds nothing, even at q = 0.
    torch.testing.assert_close(cross_entropy(logs(0.5, 0.5), logs(0.25, 0.75)), numbers(math.log(16 / 3) / 2)[0])
    torch.testing.assert_close(cross_entropy(logs(0.5, 0.5), logs(0.5, 0.5)), numbers(math.log(2))[0])
    torch.testing.assert_close(cross_entropy(logs(1, 0), logs(0.25, 0.75)), numbers(math.log(4))[0])
    assert cross_entropy(logs(1, 0), logs(1, 0)).item() == 0.0
    assert cross_entropy(logs(0.5, 0.5), logs(1, 0)).item() == INF


def test_entropy_is_the_papers_for_a_coin_and_a_die() -> None:
    shown = [entropy(logs(1.0)), entropy(logs(0.5, 0.5)), entropy(logs(*[1 / 6] * 6))]
    assert [round(float(h), 2) for h in shown] == [0.0, 0.69, 1.79]


@quick
@given(distributions(2, zeros=True))
def test_cross_entropy_is_entropy_and_kl_and_never_less_than_entropy(both: list[Tensor]) -> None:
    p, q = both
    crossed, own, kl = cross_entropy(p, q), entropy(p), exact(p, q)
    torch.testing.assert_close(crossed, own + kl)  # both ∞ where only q excludes
    assert crossed >= own - 1e-12
    torch.testing.assert_close(cross_entropy(p, p), own)


@quick
@given(distributions(2))
def test_a_kl_is_zero_for_equal_distributions_and_for_no_others(both: list[Tensor]) -> None:
    p, q = both
    assert exact(p, p).item() == pytest.approx(0.0, abs=1e-12)
    distance = float((p.exp() - q.exp()).abs().sum())
    for kl in (exact(p, q), exact(q, p)):
        assert kl.item() >= distance**2 / 2 - 1e-12  # Pinsker's bound: above 0 wherever the two differ


def test_the_two_kls_differ() -> None:
    # ½ ln(½/¼) + ½ ln(½/¾) = ½ ln(4/3);  ¼ ln ½ + ¾ ln(3/2).
    p, q = logs(0.5, 0.5), logs(0.25, 0.75)
    assert exact(p, q).item() == pytest.approx(math.log(4 / 3) / 2)
    assert exact(q, p).item() == pytest.approx(-math.log(2) / 4 + 0.75 * math.log(1.5))


def test_the_importance_estimate_of_the_papers_basketball_event() -> None:
    # 200 players of 200 cm and 100 others of 170: 0.05 · 200 + 0.95 · 170 = 171.5, and their plain mean 190.
    heights = torch.cat([torch.full((200,), 200.0), torch.full((100,), 170.0)]).double()
    p = torch.cat([logs(0.05).expand(200), logs(0.95).expand(100)])
    q = torch.cat([logs(2 / 3).expand(200), logs(1 / 3).expand(100)])
    assert importance_estimate(heights, p, q).item() == pytest.approx(171.5)
    assert importance_estimate(heights, p, p).item() == pytest.approx(190.0)


@quick
@given(distributions(2), st.lists(st.floats(-10, 10), min_size=5, max_size=5), st.integers(1, 3))
def test_the_importance_estimate_is_unbiased(both: list[Tensor], heights: list[float], draws: int) -> None:
    """Every outcome of `draws` draws from Q, each with its probability."""
    p, q = both
    values = numbers(*heights)[: len(p)]
    expected = torch.zeros((), dtype=torch.float64)
    for outcome in product(range(len(p)), repeat=draws):
        at = torch.tensor(outcome)
        expected += likelihood(q[at]) * importance_estimate(values[at], p[at], q[at])
    torch.testing.assert_close(expected, (p.exp() * values).sum())


def test_variances_of_means_by_hand() -> None:
    # (1 + 4 + 4) / 9 = 1;  with φ = 1, ¼, ¼: (1 + 4/16 + 4/16) / 1.5² = 1.5 / 2.25 = 2/3.
    assert variance_of_mean(numbers(1, 4, 4)).item() == pytest.approx(1.0)
    assert variance_of_mean(numbers(1, 4, 4), numbers(1, 0.25, 0.25)).item() == pytest.approx(2 / 3)


@quick
@given(
    st.lists(st.tuples(st.floats(0.01, 100), st.floats(0.01, 1)), min_size=1, max_size=8),
    st.floats(0.1, 10),
)
def test_no_weights_do_better_than_the_lemmas(items: list[tuple[float, float]], k: float) -> None:
    """Lemma 8.1 for the plain mean, and the same for any weights."""
    variances, others = numbers(*(v for v, _ in items)), numbers(*(w for _, w in items))
    least = variance_of_mean(variances, k / variances)
    assert least.item() == pytest.approx(1 / float((1 / variances).sum()))
    for weights in (None, others):
        assert variance_of_mean(variances, weights) >= least - 1e-12
