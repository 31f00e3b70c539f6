"""The kernels of AdamW and of rounded sums, against the equations in torch."""

import pytest
import torch

from support.adamw_steps import ARMS, trained
from support.kernels import DEVICE, INTERPRETED
from vigneron.core import rounding
from vigneron.core.moments import Kind
from vigneron.policy.compiling import can_run_kernels, interpreted_kernels

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("kind", "dtype"), ARMS)
def test_the_kernel_computes_the_equations(kind: Kind, dtype: torch.dtype) -> None:
    """The same draws and codes as on the CPU, but where rounding in float32 decides. What is in float32 altogether is
    torch's fused AdamW, which takes 1 − β₂ in float32 on a GPU: 1.3e-5 of it."""
    assert can_run_kernels(DEVICE)
    here, player = trained(DEVICE, dtype, 1, kind=kind)
    with interpreted_kernels(False):
        there, other = trained(torch.device("cpu"), dtype, 1, kind=kind)
    for got, expected in zip(here, there, strict=True):
        if dtype == torch.float32:
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)
        else:
            assert float((got == expected).double().mean()) > 0.99
            torch.testing.assert_close(got.float(), expected.float(), rtol=2.0**-7, atol=1e-6)
    expected_state = other.tensors()
    for name, tensor in player.tensors().items():
        if tensor.dtype == torch.uint8:
            difference = (tensor.cpu().int() - expected_state[name].int()).abs()
            assert int(difference.max()) <= 1
            assert float((difference == 0).double().mean()) > 0.999
        else:
            torch.testing.assert_close(tensor.cpu(), expected_state[name], rtol=2e-5, atol=1e-30)


def test_rounded_sums_are_those_of_the_cpu() -> None:
    from vigneron.training.adamw_kernel import add_rounded_

    torch.manual_seed(0)
    total, part = torch.randn(2, 10_003 if INTERPRETED else 100_003).to(torch.bfloat16)
    here = total.to(DEVICE, copy=True)
    add_rounded_(here, part.to(DEVICE), 2**62 + 5)
    rounding.add_rounded_(total, part, 2**62 + 5)
    assert torch.equal(here.cpu(), total)
