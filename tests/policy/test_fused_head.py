"""The head's written-out gradients are autograd's, in float64, and its statistics are those of the definitions."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vigneron.policy import fused_head as head
from vigneron.policy.fused_head import Head, token_statistics


def plainly(hidden, weight, ids, temperature, other_hidden, other_weight, from_other):
    logprobs = (hidden @ weight.t() / temperature).log_softmax(-1)
    other = (other_hidden @ other_weight.t() / temperature).log_softmax(-1)
    p = logprobs.exp()
    chosen = logprobs.gather(-1, ids[:, None])[:, 0]
    kl = (other.exp() * (other - logprobs)).sum(-1) if from_other else (p * (logprobs - other)).sum(-1)
    return chosen, -(p * logprobs).sum(-1), kl


@given(
    tokens=st.integers(1, 9),
    chunk=st.integers(1, 10),
    temperature=st.sampled_from([0.5, 1.0, 1.7]),
    seed=st.integers(0, 10**6),
    from_other=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_values_and_gradients_are_those_of_autograd(
    tokens: int, chunk: int, temperature: float, seed: int, from_other: bool
) -> None:
    torch.manual_seed(seed)
    hidden = torch.randn(tokens, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(11, 5, dtype=torch.float64, requires_grad=True)
    other_hidden, other_weight = torch.randn(tokens, 5).double(), torch.randn(11, 5).double()
    ids = torch.randint(11, (tokens,))
    factors = torch.randn(3, tokens, dtype=torch.float64)
    before = head.HEAD_CHUNK
    head.HEAD_CHUNK = chunk
    try:
        other = Head(other_weight, torch.float32)
        own = Head(weight, torch.float32)
        got = token_statistics(own, hidden, ids, temperature, other, other_hidden, from_other=from_other)
        to_got = torch.autograd.grad(sum((f * v).sum() for f, v in zip(factors, got, strict=True)), [hidden, weight])
    finally:
        head.HEAD_CHUNK = before
    expected = plainly(hidden, weight, ids, temperature, other_hidden, other_weight, from_other)
    to_expected = torch.autograd.grad(
        sum((f * v).sum() for f, v in zip(factors, expected, strict=True)), [hidden, weight]
    )
    for a, b in zip([*got, *to_got], [*expected, *to_expected], strict=True):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-10)


def test_one_token_by_hand() -> None:
    """Logits 0 and log 3: p = ¼, ¾."""
    weight = torch.tensor([[0.0], [torch.tensor(3.0).log()]], requires_grad=True)
    found = token_statistics(Head(weight, torch.float32), torch.ones(1, 1), torch.tensor([1]), 1.0)
    assert found.chosen_N.item() == pytest.approx(-0.287682)
    assert found.entropy_N.item() == pytest.approx(0.562335)
    assert found.exact_kl_N is None
    found.chosen_N.sum().backward()
    torch.testing.assert_close(weight.grad, torch.tensor([[-0.25], [0.25]]))
