"""AdamW's moments in 8 bits, against the definition of the map and, where it is installed, bitsandbytes."""

import pytest
import torch

from vigneron.core.moments import (
    BLOCK,
    SMALLEST,
    dequantize,
    device_state_bytes,
    dynamic_map,
    quantize,
    state_bytes,
)


def test_bytes_of_the_state() -> None:
    assert state_bytes("adamw", 10_000) == 80_000
    assert state_bytes("adamw_8bit", SMALLEST - 1) == 8 * (SMALLEST - 1)
    assert state_bytes("adamw_8bit", 256 * 1000) == 2 * 256_000 + 2 * 4 * 1000
    assert state_bytes("adamw_8bit", 256 * 1000 + 1) == 2 * 256_001 + 2 * 4 * 1001
    sizes = [2**30, 100]
    assert device_state_bytes("adamw", sizes, offload=False) == 8 * (2**30 + 100)
    assert device_state_bytes("adamw", sizes, offload=True) == 3 * 8 * 2**24
    assert device_state_bytes("adamw", [100], offload=True) == 800


def test_the_map() -> None:
    """Worked out by hand: 7 decades, the last one in 64 bins with a sign and 128 without."""
    signed, unsigned = dynamic_map(True), dynamic_map(False)
    assert len(signed) == len(unsigned) == 256
    assert torch.equal(signed, signed.sort().values)
    assert torch.equal(unsigned, unsigned.sort().values)
    assert float(signed[127]) == float(unsigned[0]) == 0
    assert float(signed[255]) == float(unsigned[255]) == 1
    assert float(signed[128]) == pytest.approx(0.55e-6)  # one bin from 1e-7 to 1e-6
    assert unsigned[1:3].tolist() == pytest.approx([0.325e-6, 0.775e-6])
    assert float(signed[254]) == pytest.approx(1 - 0.45 / 64)
    assert float(unsigned[254]) == pytest.approx(1 - 0.45 / 128)
    assert torch.equal(signed[:127], -signed[128:255].flip(0))


@pytest.mark.parametrize("signed", [True, False])
def test_the_map_is_that_of_bitsandbytes(signed: bool) -> None:
    functional = pytest.importorskip("bitsandbytes.functional")
    torch.testing.assert_close(dynamic_map(signed), functional.create_dynamic_map(signed=signed), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("signed", [True, False])
def test_codes_are_the_nearest_and_a_value_of_the_map_is_itself(signed: bool) -> None:
    torch.manual_seed(0)
    values = torch.randn(BLOCK * 8 + 50) * 10 ** torch.empty(BLOCK * 8 + 50).uniform_(-8, 0)
    values = values if signed else values.abs()
    codes, scale = quantize(values, signed=signed)
    scaled = values / scale.repeat_interleave(BLOCK)[: len(values)]
    distance = (scaled[:, None] - dynamic_map(signed)).abs()
    distance[:, 0] = distance[:, 0] if signed else torch.inf  # 0 is not used without a sign
    chosen = distance.gather(1, codes.long()[:, None])[:, 0]
    assert (chosen <= distance.min(1).values + 1e-7).all()
    again = dequantize(codes, scale, signed=signed)
    assert len(scale) == 9
    codes_again, scale_again = quantize(again, signed=signed)
    # The largest of a block is exact, unless it is negative: −1 is not in the map.
    if not signed:
        assert torch.equal(codes_again, codes)
        assert torch.equal(scale_again, scale)


def test_relative_errors_are_small_where_values_are_large() -> None:
    torch.manual_seed(0)
    values = torch.empty(BLOCK * 100).uniform_(0.5, 1)
    error = (dequantize(*quantize(values, signed=False), signed=False) / values - 1).abs()
    assert float(error.max()) < 0.45 / 128 / 0.5 * 1.01


def test_zeros_stay_zeros_and_a_second_moment_never_becomes_zero() -> None:
    zeros = torch.zeros(BLOCK)
    for signed in (True, False):
        assert dequantize(*quantize(zeros, signed=signed), signed=signed).abs().max() == 0
    second = torch.full((BLOCK,), 1e-12)
    second[0] = 1.0
    assert dequantize(*quantize(second, signed=False), signed=False)[1:].min() == pytest.approx(0.325e-6)
