"""The distribution sampled from, and draws keyed by who draws."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

from support.later import Later
from vigneron.core.draws import (
    OTHER_DRAWS,
    Sampling,
    draw,
    draw_keys,
    entropy,
    keyed_permutation,
    keyed_uniform,
    sampled_logprobs,
    uniform_at,
)

stats = Later("scipy.stats")

# Likelihoods 0.4, 0.3, 0.2, 0.1, out of order.
LIKELIHOODS = torch.tensor([[0.2, 0.4, 0.1, 0.3]], dtype=torch.float64)


def probabilities(**sampling: float) -> list[float]:
    return sampled_logprobs(LIKELIHOODS.log() + 5.0, Sampling(**sampling)).exp()[0].tolist()


@pytest.mark.parametrize(
    ("sampling", "wanted"),
    [
        ({}, [0.2, 0.4, 0.1, 0.3]),
        ({"top_k": 4}, [0.2, 0.4, 0.1, 0.3]),
        ({"top_k": 9}, [0.2, 0.4, 0.1, 0.3]),
        ({"top_k": 2}, [0, 4 / 7, 0, 3 / 7]),
        ({"top_k": 1}, [0, 1, 0, 0]),
        # What comes before 0.4, 0.3, 0.2, 0.1 is 0, 0.4, 0.7, 0.9: the nucleus is where that is below p.
        ({"top_p": 0.65}, [0, 4 / 7, 0, 3 / 7]),
        ({"top_p": 0.75}, [2 / 9, 4 / 9, 0, 3 / 9]),
        ({"top_p": 1e-9}, [0, 1, 0, 0]),
        # Of what top-k left, 4/9, 3/9, 2/9, the third has 7/9 before it, above 0.75.
        ({"top_k": 3, "top_p": 0.75}, [0, 4 / 7, 0, 3 / 7]),
        # √p: 0.4472, 0.6325, 0.3162, 0.5477 over their sum.
        ({"temperature": 2.0}, [x**0.5 / sum(y**0.5 for y in (0.2, 0.4, 0.1, 0.3)) for x in (0.2, 0.4, 0.1, 0.3)]),
        # Temperature first: p² is 0.16, 0.09, 0.04, 0.01 of 0.30, so the likeliest alone has over a half.
        ({"temperature": 0.5, "top_p": 0.5}, [0, 1, 0, 0]),
        ({"temperature": 0.5, "top_k": 2}, [0, 0.16 / 0.25, 0, 0.09 / 0.25]),
    ],
)
def test_sampled_logprobs_by_hand(sampling: dict[str, float], wanted: list[float]) -> None:
    assert probabilities(**sampling) == pytest.approx(wanted, abs=1e-12)


logit_rows = hnp.arrays(
    np.float64, st.tuples(st.integers(1, 3), st.integers(1, 7)), elements=st.floats(-30, 30, allow_nan=False)
)
samplings = st.builds(
    Sampling, temperature=st.floats(0.1, 5.0), top_k=st.integers(0, 8), top_p=st.floats(0.01, 1.0, exclude_min=True)
)


@settings(max_examples=80, deadline=None)
@given(logits=logit_rows, sampling=samplings, data=st.data())
def test_sampled_logprobs_sum_to_one_and_a_token_that_was_sampled_stays_finite(
    logits: np.ndarray, sampling: Sampling, data: st.DataObject
) -> None:
    rows, vocabulary = logits.shape
    keep = torch.tensor(data.draw(st.lists(st.integers(0, vocabulary - 1), min_size=rows, max_size=rows)))
    leaf = torch.from_numpy(logits).requires_grad_()
    free, kept = sampled_logprobs(leaf, sampling), sampled_logprobs(leaf, sampling, keep)
    for logprobs in (free, kept):
        torch.testing.assert_close(logprobs.exp().sum(-1), torch.ones(rows, dtype=torch.float64))
    if sampling.top_k:
        assert (free.isfinite().sum(-1) <= sampling.top_k).all()
    chosen = kept.gather(-1, keep[:, None])[:, 0]
    assert chosen.isfinite().all()
    # The support grows by the sampled token and by nothing else.
    support = free.isfinite().scatter(-1, keep[:, None], True)
    assert torch.equal(kept.isfinite(), support)
    (chosen.sum() + entropy(kept).sum()).backward()
    assert leaf.grad.isfinite().all()


def test_a_token_that_was_sampled_is_renormalised_with_the_rest() -> None:
    kept = sampled_logprobs(LIKELIHOODS.log(), Sampling(top_k=2), torch.tensor([2]))
    assert kept.exp()[0].tolist() == pytest.approx([0, 0.4 / 0.8, 0.1 / 0.8, 0.3 / 0.8])


def test_entropy_by_hand_with_excluded_tokens() -> None:
    logprobs = torch.tensor([[0.5, 0.25, 0.25, 0.0], [1.0, 0.0, 0.0, 0.0], [0.25] * 4]).log()
    # ½ ln 2 + 2 · ¼ ln 4 = 1.5 ln 2;  0;  ln 4.
    assert entropy(logprobs).tolist() == pytest.approx([1.5 * math.log(2), 0.0, math.log(4)])


def test_draw_takes_the_token_whose_share_holds_the_number() -> None:
    # Shares: token 0 none, token 1 [0, 0.25), token 2 none, token 3 [0.25, 1), token 4 none.
    shares = torch.tensor([0.0, 0.25, 0.0, 0.75, 0.0], dtype=torch.float64)
    numbers = torch.tensor([0.0, 0.2499, 0.25, 0.9, 1 - 2.0**-53], dtype=torch.float64)
    assert draw(shares.expand(5, 5), numbers).tolist() == [1, 1, 3, 3, 3]


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_draw_never_takes_a_token_of_probability_zero(data: st.DataObject) -> None:
    weights = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=8).filter(any))
    # The same in a vocabulary of several blocks, empty ones among them.
    places = data.draw(st.lists(st.integers(0, 700), min_size=len(weights), max_size=len(weights), unique=True))
    weights = [
        dict(zip(places, weights, strict=True)).get(i, 0) for i in range(max(places) + data.draw(st.integers(1, 300)))
    ]
    edges = st.sampled_from([0.0, 2.0**-53, 0.5, 1 - 2.0**-53])
    number = data.draw(st.one_of(edges, st.floats(0, 1, exclude_max=True)))
    # Rounded to float32, they need not sum to 1.
    shares = torch.tensor([weights], dtype=torch.float32) / sum(weights)
    token = int(draw(shares, torch.tensor([number], dtype=torch.float64)))
    assert weights[token] > 0


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_draws_follow_the_distribution(seed: int) -> None:
    weights = torch.zeros(600, dtype=torch.float64)  # three blocks, the last one cut
    weights[[0, 255, 256, 511, 599]] = torch.tensor([0.4, 0.3, 0.05, 0.05, 0.2], dtype=torch.float64)
    count = 20_000
    tokens = draw(weights.expand(count, 600), keyed_uniform(seed, 3, torch.arange(count), 7))
    seen = torch.bincount(tokens, minlength=600)
    assert (seen[weights == 0] == 0).all()
    some = weights > 0
    assert stats.chisquare(seen[some].numpy(), (weights[some] * count).numpy()).pvalue > 1e-3


def splitmix(bits: int) -> int:
    """splitmix64's step in Python's whole numbers."""
    bits = (bits + 0x9E3779B97F4A7C15) % 2**64
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB % 2**64
    return bits ^ (bits >> 31)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**63 - 1), st.integers(0, 10**6), st.integers(0, 10**9), st.integers(-1, 10**5))
def test_keyed_uniform_is_splitmix64_of_its_key(seed: int, step: int, sample: int, position: int) -> None:
    state = splitmix(splitmix(splitmix(splitmix(seed) ^ step) ^ sample) ^ position % 2**64)
    number = keyed_uniform(seed, step, torch.tensor([sample]), position)
    assert number.item() == (state >> 11) / 2**53
    assert 0 <= number.item() < 1


def test_keyed_uniform_does_not_depend_on_neighbours() -> None:
    samples = torch.tensor([5, 0, 17, 3, 5])
    together = keyed_uniform(1, 2, samples, 3)
    alone = torch.cat([keyed_uniform(1, 2, sample[None], 3) for sample in samples])
    assert torch.equal(together, alone)
    assert together[0] == together[4]


def streams() -> dict[str, Tensor]:
    """Numbers along each part of the key, the others held."""
    n = 500
    one = torch.tensor([4])
    return {
        "sample": keyed_uniform(0, 0, torch.arange(n), 0),
        "position": torch.cat([keyed_uniform(0, 0, one, i) for i in range(n)]),
        "step": torch.cat([keyed_uniform(0, i, one, 0) for i in range(n)]),
        "seed": torch.cat([keyed_uniform(i, 0, one, 0) for i in range(n)]),
    }


@pytest.mark.slow
def test_keyed_uniform_differs_and_looks_uniform_along_every_part_of_the_key() -> None:
    found = streams()
    for numbers in found.values():
        assert len(set(numbers.tolist())) == len(numbers)
        assert stats.kstest(numbers.numpy(), "uniform").pvalue > 1e-3
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.15  # 0.045 is one standard deviation
    everything = torch.cat(list(found.values())).tolist()
    # Only the keys the streams share may repeat: (0, 0, 4, 0) is in all four.
    assert len(everything) - len(set(everything)) == 3


def test_keys_with_swapped_parts_differ() -> None:
    swapped = {keyed_uniform(a, b, torch.tensor([c]), d).item() for a, b, c, d in [(1, 2, 3, 4), (2, 1, 3, 4)]}
    swapped |= {keyed_uniform(a, b, torch.tensor([c]), d).item() for a, b, c, d in [(1, 3, 2, 4), (1, 2, 4, 3)]}
    assert len(swapped) == 4


def test_keyed_permutation_holds_every_place_once_and_changes_with_seed_and_epoch() -> None:
    orders = {(seed, epoch): keyed_permutation(seed, epoch, 50) for seed in (0, 1) for epoch in (0, 1)}
    assert all(sorted(order) == list(range(50)) for order in orders.values())
    assert len({tuple(order) for order in orders.values()}) == 4
    assert keyed_permutation(1, 1, 50) == orders[1, 1]
    assert keyed_permutation(0, 0, 0) == []


@given(turn=st.integers(0, 2**20 - 1), position=st.integers(0, 2**40 - 1), other=st.integers(0, 2**40 - 1))
def test_no_token_of_any_turn_has_the_draw_of_something_else(turn: int, position: int, other: int) -> None:
    """Once the origin of a response was drawn by the number that drew the first token of its second turn. A key is
    hashed with a position by XOR, so different differences are different draws."""
    sample_N = torch.tensor([7])
    of_token = draw_keys(1, 2, sample_N, turn) ^ position
    of_other = draw_keys(1, 2, sample_N) ^ (OTHER_DRAWS + other)
    assert of_token != of_other
    if turn == 1 and position == other == 0:
        assert uniform_at(draw_keys(1, 2, sample_N, 1), torch.zeros(1).long()) != keyed_uniform(
            1, 2, sample_N, OTHER_DRAWS
        )
