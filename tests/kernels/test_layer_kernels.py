"""The kernels of layers and of the LM head, against torch."""

import pytest
import torch
from torch.nn.functional import gelu, silu

from support.kernels import DEVICE, INTERPRETED
from vigneron.core.draws import Sampling, chosen_logprobs, entropy, sampled_logprobs

pytestmark = pytest.mark.slow


def test_the_layer_kernels_are_torch() -> None:
    from vigneron.policy.layer_kernels import add_adapters, gated, rms_norm, rotate

    torch.manual_seed(0)
    y = torch.randn(3, 5, 4 * 24 + 20, device=DEVICE)
    heads, weight = y[..., :96].view(3, 5, 4, 24), torch.randn(24, device=DEVICE)
    normed = heads * (heads.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() * (1 + weight)
    torch.testing.assert_close(rms_norm(heads, weight, 1e-6, 1.0, torch.float32), normed, atol=1e-5, rtol=1e-5)
    query, key = heads.transpose(1, 2), y[..., 48:96].view(3, 5, 2, 24).transpose(1, 2)
    cos, sin = torch.randn(2, 3, 5, 24, device=DEVICE)
    for got, given in zip(rotate(query, key, cos, sin, torch.float32), (query, key), strict=True):
        half = torch.cat((-given[..., 12:], given[..., :12]), -1)
        torch.testing.assert_close(got, given * cos[:, None] + half * sin[:, None], atol=1e-5, rtol=1e-5)
    gate, up = y[..., :40], y[..., 40:80]
    torch.testing.assert_close(gated(gate, up, "silu"), silu(gate) * up, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(gated(gate, up, "gelu_tanh"), gelu(gate, approximate="tanh") * up, atol=1e-5, rtol=1e-5)
    x, base = torch.randn(70, 32, device=DEVICE), torch.randn(96, 32, device=DEVICE)
    first, second = torch.randn(2, 8, 32, device=DEVICE), torch.randn(96, 8, device=DEVICE)
    products = (x @ torch.cat([base, *first]).T).bfloat16()
    wanted = x @ base.T
    wanted[:, :64] += 2 * (x @ first[0].T) @ second[:64].T
    wanted[:, 64:] += 0.5 * (x @ first[1].T) @ second[64:].T
    starts = torch.tensor([96, 96, 104], dtype=torch.int32, device=DEVICE)
    add_adapters(products, second.bfloat16(), starts, torch.tensor([2.0, 2.0, 0.5], device=DEVICE), 32)
    assert (products[:, :96].float() - wanted).norm() < 1e-2 * wanted.norm()


@pytest.mark.parametrize(
    ("size", "x_dtype", "y_dtype", "trained"),
    [
        (24, torch.float32, torch.bfloat16, True),
        (128, torch.bfloat16, torch.bfloat16, True),
        (1536, torch.float32, torch.bfloat16, True),
        (4096, torch.float32, torch.bfloat16, False),
        (5000, torch.float32, torch.float32, True),
    ],
)
def test_a_sum_and_its_norm_are_their_formulas(
    size: int, x_dtype: torch.dtype, y_dtype: torch.dtype, trained: bool
) -> None:
    """In double precision, with gradients, for more rows than programs; y is a part of longer rows. Sums are torch's,
    bit for bit, and norms of sums are those of the norm's kernel."""
    from vigneron.policy.fused_ops import fused_add, fused_add_norm, fused_norm

    torch.manual_seed(0)
    rows = 12 if INTERPRETED else 1100 if size > 1000 else 10_000
    x = torch.randn(2, rows // 2, size, device=DEVICE).to(x_dtype).requires_grad_()
    y = torch.randn(2, rows // 2, size + 8, device=DEVICE).to(y_dtype)[..., :size].detach().requires_grad_()
    weight = torch.randn(size, device=DEVICE, requires_grad=trained)
    to_total, to_out = torch.randn(2, *x.shape, device=DEVICE).to(x.dtype).double()

    def normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() * (1 + weight)

    def gradients(leaves: list[torch.Tensor], *results: torch.Tensor) -> list[torch.Tensor]:
        loss = sum((result.double() * to).sum() for result, to in zip(results, (to_total, to_out), strict=True))
        return list(torch.autograd.grad(loss, [leaf for leaf in leaves if leaf.requires_grad]))

    exact = [tensor.detach().double().requires_grad_(tensor.requires_grad) for tensor in (x, y, weight)]
    options = (weight, 1e-6, 1.0, torch.bfloat16)
    total, out = fused_add_norm(x, y, *options)
    assert torch.equal(total, x + y)
    assert torch.equal(out, fused_norm(total, *options))
    true = exact[0] + exact[1]
    got = [out, *gradients([x, y, weight], total, out)]
    wanted = [normed(true, exact[2]), *gradients(exact, true, normed(true, exact[2]))]
    same, out = fused_add_norm(x, None, *options)
    assert torch.equal(same, x)
    got += [out, *gradients([x, weight], same, out)]
    wanted += [normed(exact[0], exact[2]), *gradients(exact[::2], exact[0], normed(exact[0], exact[2]))]
    got += gradients([x, y], fused_add(x, y), torch.zeros_like(x))
    wanted += [to_total, to_total]
    assert len(got) == (9 if trained else 7)
    for number, (each, expected) in enumerate(zip(got, wanted, strict=True)):
        assert (each.double() - expected).norm() < 5e-3 * expected.norm(), number
    with torch.no_grad():
        assert torch.equal(fused_add(x, y), x + y)
        assert all(map(torch.equal, fused_add_norm(x, y, *options), (total, fused_norm(total, *options))))
        across = torch.randn(size, rows, device=DEVICE).to(y_dtype).t().unflatten(0, (2, rows // 2))
        assert across.stride(-1) > 1
        assert torch.equal(fused_add(x, across), x + across)
        assert torch.equal(fused_add_norm(x, across, *options)[0], x + across)


def test_the_heads_kernels_are_its_formulas() -> None:
    from vigneron.policy import head_kernels
    from vigneron.policy.fused_head import _forward_statistics, _logit_gradient

    torch.manual_seed(0)
    logits = 5 * torch.randn(7, 9001, device=DEVICE)
    logits[3], logits[3, 17] = -30, 40  # one token has all of the probability
    ids = torch.tensor([1, 9000, 4096, 17, 8191, 5, 6], device=DEVICE)
    for temperature in (1.0, 0.7):
        expected = _forward_statistics(logits, ids, temperature, None, False)
        for got, wanted in zip(head_kernels.statistics(logits, ids, temperature), expected, strict=True):
            torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)
        own = (expected[2], expected[1], *torch.randn(2, 7, device=DEVICE))
        wanted = _logit_gradient(logits, ids, temperature, own, (), False, torch.float32)
        got = head_kernels.gradient(logits, ids, temperature, own, torch.float32)
        torch.testing.assert_close(got, wanted, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_heads_gradient_is_the_sum_over_chunks(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """In bfloat16 against double precision; `dtype` is the weight's own."""
    from vigneron.policy.fused_head import Head, token_statistics

    torch.manual_seed(0)
    chunk, size, vocabulary = 64 if INTERPRETED else 1024, 64, 1000
    monkeypatch.setattr("vigneron.policy.fused_head.HEAD_CHUNK", chunk)
    count = 2 * chunk + 10
    hidden = torch.randn(count, size, device=DEVICE).to(torch.bfloat16).requires_grad_()
    weight = (0.3 * torch.randn(vocabulary, size, device=DEVICE)).to(torch.bfloat16).to(dtype).requires_grad_()
    ids, share = torch.randint(vocabulary, (count,), device=DEVICE), torch.randn(2, count, device=DEVICE)
    found = token_statistics(Head(weight, torch.bfloat16), hidden, ids, 0.7)
    (found.chosen_N * share[0] + found.entropy_N * share[1]).sum().backward()
    exact_hidden, exact_weight = (x.detach().double().requires_grad_() for x in (hidden, weight))
    logprobs = sampled_logprobs(exact_hidden @ exact_weight.t(), Sampling(0.7))
    (chosen_logprobs(logprobs, ids) * share[0] + entropy(logprobs) * share[1]).sum().backward()
    for got, exact in ((hidden.grad, exact_hidden.grad), (weight.grad, exact_weight.grad)):
        assert (got.double() - exact).norm() < 5e-3 * exact.norm()
