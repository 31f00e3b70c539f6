"""Stochastic rounding to bfloat16: exact on average, drawn by (key, position) alone."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vigneron.core.draws import mix
from vigneron.core.rounding import _mix_int, add_rounded_, round_stochastically, rounding_bits, rounding_key

ALL_BITS = torch.arange(2**16)
NUMBERS = st.floats(min_value=-(2.0**100), max_value=2.0**100, width=32)


@settings(max_examples=40)
@given(NUMBERS)
def test_the_mean_over_all_draws_is_the_exact_value_and_each_is_a_neighbour(number: float) -> None:
    exact = torch.tensor(number, dtype=torch.float32)
    rounded = round_stochastically(exact.expand(2**16).contiguous(), ALL_BITS).double()
    bits = int(exact.view(torch.int32))
    towards_zero = torch.tensor(bits & -(2**16), dtype=torch.int32).view(torch.float32).double()
    away = torch.tensor((bits & -(2**16)) + 2**16, dtype=torch.int32).view(torch.float32).double()
    assert set(rounded.tolist()) <= {float(towards_zero), float(away)}
    assert float(rounded.mean()) == pytest.approx(float(exact.double()), rel=1e-12, abs=1e-300)


def test_values_of_bfloat16_and_those_that_are_not_finite_stay() -> None:
    kept = torch.tensor([0.0, -0.0, 1.0, -3.5, 2.0**-126, float("inf"), float("-inf")])
    for bits in (0, 1, 2**16 - 1):
        assert torch.equal(round_stochastically(kept, torch.full((7,), bits)).float(), kept)
    # The NaN of CUDA: 0x7FFFFFFF. With a carry it would be −0.
    nan = torch.tensor([2**31 - 1], dtype=torch.int32).view(torch.float32)
    assert round_stochastically(nan, torch.tensor([2**16 - 1])).isnan().all()


def test_small_steps_move_on_average_and_to_the_nearest_never() -> None:
    """Weights of 1 and 100 steps of −1e-4, a 39th of the distance to the next value below: −0.01 in all."""
    count, steps, size = 4096, 100, 1e-4
    nearest = torch.ones(count, dtype=torch.bfloat16)
    weights = nearest.clone()
    for step in range(steps):
        nearest = (nearest.float() - size).to(torch.bfloat16)
        key = rounding_key(0, "w", step)
        weights = round_stochastically(weights.float() - size, rounding_bits(key, 0, count))
    assert torch.equal(nearest, torch.ones_like(nearest))
    # A weight takes 2⁻⁸ at once, with probability size / 2⁻⁸ a step: a binomial distribution.
    deviation = 2.0**-8 * (steps * size / 2.0**-8) ** 0.5 / count**0.5
    assert float(weights.double().mean()) == pytest.approx(1 - steps * size, abs=4 * deviation)


def test_bits_are_uniform_and_depend_on_key_and_position_alone() -> None:
    key = rounding_key(7, "layers.0.weight", 3)
    bits = rounding_bits(key, 0, 2**18)
    counts = torch.bincount(bits, minlength=2**16).double()
    chi_squared = float(((counts - 4) ** 2 / 4).sum())
    assert abs(chi_squared - 2**16) < 5 * (2 * 2**16) ** 0.5
    assert torch.equal(rounding_bits(key, 1000, 24), bits[1000:1024])
    others = [(8, "layers.0.weight", 3), (7, "layers.1.weight", 3), (7, "layers.0.weight", 4)]
    for other in others:
        same = float((rounding_bits(rounding_key(*other), 0, 2**18) == bits).double().mean())
        assert same < 1e-4


@settings(max_examples=40)
@given(st.integers(min_value=-(2**63), max_value=2**63 - 1))
def test_integers_are_mixed_as_tensors_are(number: int) -> None:
    assert _mix_int(number) == int(mix(torch.tensor(number))) % 2**64


def test_a_rounded_sum_in_chunks_is_that_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    total, part = torch.randn(2, 1000).to(torch.bfloat16)
    whole, cut = total.clone(), total.clone()
    add_rounded_(whole, part, 5)
    monkeypatch.setattr("vigneron.core.rounding.CHUNK", 96)
    add_rounded_(cut, part, 5)
    assert torch.equal(whole, cut)
    assert torch.equal(whole, round_stochastically(total.float() + part.float(), rounding_bits(5, 0, 1000)))
