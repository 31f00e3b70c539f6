"""The head's written-out gradients are autograd's, in float64, and its statistics are those of the definitions."""

import inspect

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vigneron.policy import fused_head as head
from vigneron.policy.fused_head import Head, token_statistics


def plainly(hidden, weight, ids, temperature, other_hidden, other_weight, beta):
    """By autograd, over the tokens that both vocabularies have; between 0 and 1 GKD's formula as it is written, over
    β (1 − β)."""
    logprobs = (hidden @ weight.t() / temperature).log_softmax(-1)
    p = logprobs.exp()
    chosen = logprobs.gather(-1, ids[:, None])[:, 0]
    size = min(len(weight), len(other_weight))
    own = (hidden @ weight[:size].t() / temperature).softmax(-1)
    other = (other_hidden @ other_weight[:size].t() / temperature).softmax(-1)
    mixed = beta * other + (1 - beta) * own

    def kl(a, b):
        return (a * (a / b).log()).sum(-1)

    ends = {0.0: lambda: kl(other, own), 1.0: lambda: kl(own, other)}
    jensen_shannon = ends.get(
        beta, lambda: (beta * kl(other, mixed) + (1 - beta) * kl(own, mixed)) / (beta * (1 - beta))
    )
    return chosen, -(p * logprobs).sum(-1), jensen_shannon()


@given(
    tokens=st.integers(1, 9),
    chunk=st.integers(1, 10),
    temperature=st.sampled_from([0.5, 1.0, 1.7]),
    seed=st.integers(0, 10**6),
    beta=st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]),
    other_size=st.sampled_from([11, 9, 13]),
)
@settings(max_examples=80, deadline=None)
def test_values_and_gradients_are_those_of_autograd(
    tokens: int, chunk: int, temperature: float, seed: int, beta: float, other_size: int
) -> None:
    """Also to a policy of another width, and with a vocabulary of another size."""
    torch.manual_seed(seed)
    hidden = torch.randn(tokens, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(11, 5, dtype=torch.float64, requires_grad=True)
    other_hidden, other_weight = torch.randn(tokens, 3).double(), torch.randn(other_size, 3).double()
    ids = torch.randint(11, (tokens,))
    factors = torch.randn(3, tokens, dtype=torch.float64)
    before = head.HEAD_CHUNK
    head.HEAD_CHUNK = chunk
    try:
        other = Head(other_weight, torch.float32)
        own = Head(weight, torch.float32)
        got = token_statistics(own, hidden, ids, temperature, other, other_hidden, beta=beta)
        to_got = torch.autograd.grad(sum((f * v).sum() for f, v in zip(factors, got, strict=True)), [hidden, weight])
    finally:
        head.HEAD_CHUNK = before
    expected = plainly(hidden, weight, ids, temperature, other_hidden, other_weight, beta)
    to_expected = torch.autograd.grad(
        sum((f * v).sum() for f, v in zip(factors, expected, strict=True)), [hidden, weight]
    )
    for a, b in zip([*got, *to_got], [*expected, *to_expected], strict=True):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize(("near", "end"), [(1e-6, 0.0), (1 - 1e-6, 1.0)])
def test_near_its_ends_the_divergence_is_that_of_the_end(near: float, end: float) -> None:
    """Also in float32: GKD's own formula vanishes there, and its quotient by β (1 − β) would be rounding."""
    for dtype, tolerance in ((torch.float64, 1e-4), (torch.float32, 3e-4)):
        results = []
        for beta in (near, end):
            torch.manual_seed(1)
            hidden, weight = torch.randn(4, 5, dtype=dtype) / 3, torch.randn(11, 5, dtype=dtype, requires_grad=True)
            other, other_hidden = (
                Head(torch.randn(11, 5, dtype=dtype), torch.float32),
                torch.randn(4, 5, dtype=dtype) / 3,
            )
            ids = torch.zeros(4, dtype=torch.long)
            found = token_statistics(Head(weight, torch.float32), hidden, ids, 1.0, other, other_hidden, beta=beta)
            assert found.exact_kl_N is not None
            results.append((found.exact_kl_N, *torch.autograd.grad(found.exact_kl_N.sum(), weight)))
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


def test_one_token_by_hand() -> None:
    """Logits 0 and log 3: p = ¼, ¾."""
    weight = torch.tensor([[0.0], [torch.tensor(3.0).log()]], requires_grad=True)
    found = token_statistics(Head(weight, torch.float32), torch.ones(1, 1), torch.tensor([1]), 1.0)
    assert found.chosen_N.item() == pytest.approx(-0.287682)
    assert found.entropy_N.item() == pytest.approx(0.562335)
    assert found.exact_kl_N is None
    found.chosen_N.sum().backward()
    torch.testing.assert_close(weight.grad, torch.tensor([[-0.25], [0.25]]))


@pytest.mark.slow
def test_divergences_of_several_betas_compile_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced by torch.compile without a break in the graph, as a GPU runs them: evaluation and training differ in β."""
    torch.compiler.reset()
    monkeypatch.setattr(head, "mixture_ratios", inspect.unwrap(head.mixture_ratios))  # without the tests' shape checks
    forward = torch.compile(head._forward_statistics.__wrapped__, backend="eager", fullgraph=True)  # type: ignore[attr-defined]
    backward = torch.compile(head._logit_gradient.__wrapped__, backend="eager", fullgraph=True)  # type: ignore[attr-defined]
    torch.manual_seed(0)
    logits, ids, factor = torch.randn(4, 11), torch.zeros(4, dtype=torch.long), torch.ones(4)
    for other in (torch.randn(4, 11), torch.randn(4, 9)):
        for beta in ("1.0", "0.0", "0.5", "1.0", "0.9"):
            given = (logits, ids, 1.0, other, beta)
            found, plain = forward(*given), head._forward_statistics.__wrapped__(*given)  # type: ignore[attr-defined]
            torch.testing.assert_close(found, plain)
            _, entropy, log_sum, kl, other_log_sum = plain
            rest = (log_sum, entropy, factor, factor), (other, other_log_sum, kl, factor), beta, torch.float32
            expected = head._logit_gradient.__wrapped__(logits, ids, 1.0, *rest)  # type: ignore[attr-defined]
            torch.testing.assert_close(backward(logits, ids, 1.0, *rest), expected)
