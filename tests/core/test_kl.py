"""KL estimators by enumeration: which gradient each has in expectation; the exact KL; the coefficient's rule."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.special import rel_entr, softmax
from torch import Tensor

from vigneron.core.kl import ESTIMATORS, adapted_coefficient, exact, k1, k2, k3

LOGITS = torch.tensor([0.3, -1.2, 0.9, 2.0], dtype=torch.float64)
REFERENCE = torch.tensor([-0.5, 0.4, 1.1, 0.2], dtype=torch.float64).log_softmax(0)


def test_estimators_by_hand() -> None:
    p = torch.tensor([[0.5, 0.25]]).log()
    q = torch.tensor([[0.25, 0.5]]).log()
    # log p − log q = ln 2 and −ln 2; q/p = ½ and 2.
    ln2 = math.log(2)
    torch.testing.assert_close(k1(p, q), torch.tensor([[ln2, -ln2]]))
    torch.testing.assert_close(k2(p, q), torch.tensor([[ln2**2 / 2, ln2**2 / 2]]))
    torch.testing.assert_close(k3(p, q), torch.tensor([[0.5 - 1 + ln2, 2 - 1 - ln2]]))


def gradient(function, *, at: Tensor = LOGITS) -> Tensor:
    logits = at.clone().requires_grad_()
    function(logits.log_softmax(0)).backward()
    return logits.grad


def expected_value(estimator) -> float:
    """Σᵥ π(v) k(v), every category enumerated."""
    p = LOGITS.log_softmax(0)
    return float((p.exp() * estimator(p[None], REFERENCE[None])[0]).sum())


def expected_gradient(estimator) -> Tensor:
    """Σᵥ π(v) ∇k(v): π(v) is how often v is sampled, and carries no gradient."""
    return gradient(lambda p: (p.detach().exp() * estimator(p[None], REFERENCE[None])[0]).sum())


def reverse_kl(p: Tensor) -> Tensor:
    return (p.exp() * (p - REFERENCE)).sum()


def forward_kl(p: Tensor) -> Tensor:
    return (REFERENCE.exp() * (REFERENCE - p)).sum()


def test_as_values_k1_and_k3_are_unbiased_and_k2_is_not() -> None:
    kl = float(reverse_kl(LOGITS.log_softmax(0)))
    assert expected_value(k1) == pytest.approx(kl, abs=1e-12)
    assert expected_value(k3) == pytest.approx(kl, abs=1e-12)
    assert abs(expected_value(k2) - kl) > 0.01


def test_as_losses_k1_has_no_gradient_k2_the_reverse_kls_and_k3_the_forward_kls() -> None:
    reverse, forward = gradient(reverse_kl), gradient(forward_kl)
    assert (reverse - forward).abs().max() > 0.1  # the two are told apart here
    torch.testing.assert_close(expected_gradient(k1), torch.zeros(4, dtype=torch.float64), atol=1e-12, rtol=0)
    torch.testing.assert_close(expected_gradient(k2), reverse, atol=1e-12, rtol=0)
    torch.testing.assert_close(expected_gradient(k3), forward, atol=1e-12, rtol=0)


def test_exact_has_the_direction_its_arguments_say_and_its_gradient() -> None:
    logits = LOGITS.clone().requires_grad_()
    exact(logits[None, None], REFERENCE[None, None]).sum().backward()
    torch.testing.assert_close(logits.grad, gradient(reverse_kl))
    logits = LOGITS.clone().requires_grad_()
    exact(REFERENCE[None, None], logits[None, None]).sum().backward()
    torch.testing.assert_close(logits.grad, gradient(forward_kl))


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_estimators_pass_no_gradient_where_an_input_is_not_finite(name: str, bad: float) -> None:
    p = torch.tensor([[-1.0, bad, -2.0, -1.5]], requires_grad=True)
    q = torch.tensor([[-1.5, -1.0, bad, -1.0]], requires_grad=True)
    values = ESTIMATORS[name](p, q)
    assert values.isnan().tolist() == [[False, True, True, False]]
    torch.where(torch.tensor([[True, False, False, True]]), values, 0.0).sum().backward()
    for gradients in (p.grad[0], q.grad[0]):
        assert gradients.isfinite().all()
        assert gradients[[0, 3]].all()
        assert not gradients[[1, 2]].any()


shapes = hnp.array_shapes(min_dims=3, max_dims=3, max_side=4)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_exact_agrees_with_scipy_and_is_never_negative(data: st.DataObject) -> None:
    shape = data.draw(shapes)
    logits = hnp.arrays(np.float64, shape, elements=st.floats(-20, 20))
    p, q = data.draw(logits), data.draw(logits)
    got = exact(torch.from_numpy(p), torch.from_numpy(q))
    wanted = rel_entr(softmax(p, -1), softmax(q, -1)).sum(-1)
    np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-8, atol=1e-10)
    assert (got >= -1e-12).all()
    np.testing.assert_allclose(exact(torch.from_numpy(p), torch.from_numpy(p + 3.0)).numpy(), 0, atol=1e-12)


def test_exact_skips_tokens_p_excludes_and_is_infinite_where_only_q_does() -> None:
    inf = math.inf
    p = torch.tensor([[[0.0, 0.0, -inf], [0.0, 0.0, -inf], [0.0, 0.0, 0.0]]], requires_grad=True)
    q = torch.tensor([[[0.0, 0.0, 0.0], [0.0, math.log(3), -inf], [0.0, 0.0, -inf]]], requires_grad=True)
    kl = exact(p, q)
    # ln(½ / ⅓) = ln 1.5;  ½ ln(½ / ¼) + ½ ln(½ / ¾) = ½ ln(4/3);  ∞.
    torch.testing.assert_close(kl, torch.tensor([[math.log(1.5), 0.5 * math.log(4 / 3), inf]]))
    torch.where(kl.isinf(), 0.0, kl).sum().backward()
    assert p.grad.isfinite().all()
    assert q.grad.isfinite().all()
    assert q.grad[0, 1].any()


def test_exact_at_a_nan_is_nan_and_passes_no_gradient() -> None:
    p = torch.tensor([[[1.0, math.nan], [1.0, 0.0], [0.0, 2.0]]], requires_grad=True)
    q = torch.tensor([[[0.0, 0.0], [math.nan, 0.0], [0.0, 0.0]]], requires_grad=True)
    kl = exact(p, q)
    assert kl.isnan().tolist() == [[True, True, False]]
    torch.where(torch.tensor([[False, False, True]]), kl, 0.0).sum().backward()
    for gradients in (p.grad[0], q.grad[0]):
        assert not gradients[:2].any()
        assert gradients[2].all()


def test_adapted_coefficient_by_hand_with_both_bounds() -> None:
    # target 0.8: grows above 1.2, shrinks below 0.5333…, stays between.
    steps = [
        (1.3, 0.06),  # 0.04 · 1.5
        (2.0, 0.09),  # 0.06 · 1.5
        (2.0, 0.1),  # 0.135, bounded
        (1.2, 0.1),  # not above 1.5 · 0.8
        (0.54, 0.1),  # not below 0.8 / 1.5
        (0.53, 0.1 / 1.5),
        (0.0, 0.1 / 2.25),
        (-1.0, 0.1 / 3.375),
        (0.0, 0.02),  # 0.0198, bounded
    ]
    coefficient = 0.04
    for measured, wanted in steps:
        coefficient = adapted_coefficient(coefficient, measured, target=0.8, minimum=0.02, maximum=0.1)
        assert coefficient == pytest.approx(wanted, rel=1e-12)
    changed = adapted_coefficient(1.0, 5.0, target=1.0, minimum=0.0, maximum=9.0, factor=4.0, tolerance=6.0)
    assert changed == 1.0
    assert adapted_coefficient(1.0, 7.0, target=1.0, minimum=0.0, maximum=9.0, factor=4.0, tolerance=6.0) == 4.0
