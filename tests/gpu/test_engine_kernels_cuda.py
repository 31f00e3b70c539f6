"""The engine's kernels, fused layers and releasable cache on a CUDA device, against torch in double precision and the
passes of training."""

from dataclasses import fields
from itertools import product
from typing import Any

import pytest
import torch
from torch.nn.functional import gelu, silu
from transformers import AutoModelForCausalLM

from support.small_batch import batch_of
from support.tiny_models import byte_tokenizer
from support.zoo import zoo_model
from vigneron.batch import Batch
from vigneron.core.draws import Sampling, chosen_logprobs, draw, draw_keys, entropy, sampled_logprobs, uniform_at
from vigneron.policy.attention import capped_attention
from vigneron.policy.compiling import decoder_layers, has_triton
from vigneron.policy.fused_class import plain_modules
from vigneron.policy.fused_modules import fuse_modules
from vigneron.policy.held_weights import hold_in_bfloat16
from vigneron.policy.load import make_policy
from vigneron.policy.logprobs import score
from vigneron.policy.lora import Lora, add_lora
from vigneron.policy.model import Policy
from vigneron.policy.model_checks import check_head
from vigneron.policy.packing import can_share_prompts
from vigneron.rollout.engine import engine as engine_module
from vigneron.rollout.engine import key_value_cache
from vigneron.rollout.engine.engine import Engine
from vigneron.rollout.engine.sample import sample, sampler_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available() or not has_triton(), reason="needs CUDA and Triton")
CUDA = torch.device("cuda")
# The last two need smaller blocks: Gemma 4's global layers have heads of 512 numbers.
CASES = [(9, 3, 64, 200), (4, 2, 8, 7), (8, 4, 256, 90), (8, 2, 512, 90)]


@pytest.mark.parametrize(("heads", "key_heads", "size", "slots"), CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shared", [False, True])
def test_the_decode_kernel_is_attention_over_prompt_and_row(
    heads: int, key_heads: int, size: int, slots: int, dtype: torch.dtype, shared: bool
) -> None:
    from vigneron.rollout.engine.cached_attention import Layer, kernel_tiles
    from vigneron.rollout.engine.decode_kernel import decode_attention
    from vigneron.rollout.engine.decode_tiles import Slots

    torch.manual_seed(0)
    query = 3 * torch.randn(7, heads, size, device=CUDA, dtype=dtype)
    new_key, new_value = torch.randn(2, 7, key_heads, size, device=CUDA, dtype=dtype)
    keys, values = torch.randn(2, 8, key_heads, slots, size, device=CUDA, dtype=dtype)
    at = torch.tensor([0, slots - 1, 3, 4, 5, slots // 2, 1], device=CUDA)
    full_keys, full_values = keys.clone(), values.clone()
    row_slots = Slots(at)
    prompt_cache = None
    if shared:  # the first slots of rows, in a cache of prompts: two of its five are used by several rows
        prompt = torch.tensor([4, 1, 1, 2, 3, 1, 2], device=CUDA)
        start = torch.minimum(at, torch.tensor([0, 5, 3, 4, 2, 5, 1], device=CUDA))
        prompt_cache = tuple(torch.randn(2, 5, key_heads, 6, size, device=CUDA, dtype=dtype))
        for row in range(7):
            n, own = int(start[row]), int(at[row] - start[row])
            for full, part, shared_part in zip((full_keys, full_values), (keys, values), prompt_cache, strict=True):
                full[row, :, :n] = shared_part[prompt[row], :, :n]
                full[row, :, n : n + own] = part[row, :, :own]
        row_slots = Slots(at, prompt, start)
    for row in range(7):
        full_keys[row, :, at[row]], full_values[row, :, at[row]] = new_key[row], new_value[row]
    tiles = kernel_tiles(query, Layer(None, key_heads, size, size, heads // key_heads))
    assert tiles is not None
    slot = torch.arange(slots, device=CUDA)
    for softcap, window, with_sinks in product((None, 2.0), (None, 5, 100), (False, True)):
        sinks = torch.randn(heads, device=CUDA) if with_sinks else None
        first = (at - window + 1).clamp(min=0) if window else None
        cache = keys.clone(), values.clone()
        got = decode_attention(
            query, new_key, new_value, cache, prompt_cache, row_slots, size**-0.5, tiles, first, softcap, sinks
        )
        seen = (slot <= at[:, None]) & (slot >= (first[:, None] if first is not None else 0))
        inputs = (query[:, :, None].double(), full_keys[:7].double(), full_values[:7].double(), seen[:, None, None])
        wanted = capped_attention(*inputs, size**-0.5, softcap, sinks.double() if sinks is not None else None)[:, :, 0]
        error = (got.double() - wanted).norm() / wanted.norm()
        assert error < (1e-2 if dtype == torch.bfloat16 else 1e-5), (softcap, window, with_sinks)
        own = at - row_slots.start_R if row_slots.start_R is not None else at
        assert torch.equal(cache[0][torch.arange(7, device=CUDA), :, own], new_key)


def test_the_layer_kernels_are_torch() -> None:
    from vigneron.policy.layer_kernels import add_adapters, gated, rms_norm, rotate

    torch.manual_seed(0)
    y = torch.randn(3, 5, 4 * 24 + 20, device=CUDA)
    heads, weight = y[..., :96].view(3, 5, 4, 24), torch.randn(24, device=CUDA)
    normed = heads * (heads.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() * (1 + weight)
    torch.testing.assert_close(rms_norm(heads, weight, 1e-6, 1.0, torch.float32), normed, atol=1e-5, rtol=1e-5)
    query, key = heads.transpose(1, 2), y[..., 48:96].view(3, 5, 2, 24).transpose(1, 2)
    cos, sin = torch.randn(2, 3, 5, 24, device=CUDA)
    for got, given in zip(rotate(query, key, cos, sin, torch.float32), (query, key), strict=True):
        half = torch.cat((-given[..., 12:], given[..., :12]), -1)
        torch.testing.assert_close(got, given * cos[:, None] + half * sin[:, None], atol=1e-5, rtol=1e-5)
    gate, up = y[..., :40], y[..., 40:80]
    torch.testing.assert_close(gated(gate, up, "silu"), silu(gate) * up, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(gated(gate, up, "gelu_tanh"), gelu(gate, approximate="tanh") * up, atol=1e-5, rtol=1e-5)
    x, base = torch.randn(70, 32, device=CUDA), torch.randn(96, 32, device=CUDA)
    first, second = torch.randn(2, 8, 32, device=CUDA), torch.randn(96, 8, device=CUDA)
    products = (x @ torch.cat([base, *first]).T).bfloat16()
    wanted = x @ base.T
    wanted[:, :64] += 2 * (x @ first[0].T) @ second[:64].T
    wanted[:, 64:] += 0.5 * (x @ first[1].T) @ second[64:].T
    starts = torch.tensor([96, 96, 104], dtype=torch.int32, device=CUDA)
    add_adapters(products, second.bfloat16(), starts, torch.tensor([2.0, 2.0, 0.5], device=CUDA), 32)
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
    rows = 1100 if size > 1000 else 10_000
    x = torch.randn(2, rows // 2, size, device=CUDA).to(x_dtype).requires_grad_()
    y = torch.randn(2, rows // 2, size + 8, device=CUDA).to(y_dtype)[..., :size].detach().requires_grad_()
    weight = torch.randn(size, device=CUDA, requires_grad=trained)
    to_total, to_out = torch.randn(2, *x.shape, device=CUDA).to(x.dtype).double()

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
        across = torch.randn(size, rows, device=CUDA).to(y_dtype).t().unflatten(0, (2, rows // 2))
        assert across.stride(-1) > 1
        assert torch.equal(fused_add(x, across), x + across)
        assert torch.equal(fused_add_norm(x, across, *options)[0], x + across)


FAMILIES = [
    "Llama",
    "Qwen2",
    "Qwen3",
    "Gemma",
    "Gemma 2",
    "Gemma 3 text",
    "Mistral v0.1 (window)",
    "Phi-3",
    "SmolLM3",
]
PARTIAL = "Phi-3, half of each head turned"


def family_model(family: str) -> Any:
    if family != PARTIAL:
        return zoo_model(family)
    config = zoo_model("Phi-3").config
    config.partial_rotary_factor = config.rope_parameters["partial_rotary_factor"] = 0.5
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).eval()


def bfloat16_policy(family: str, *, lora: bool, low_precision: bool) -> Policy:
    model: Any = family_model(family)
    if low_precision:
        hold_in_bfloat16(model, rounding=True)
    if lora:
        model = add_lora(model, Lora(rank=4))
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight, std=0.2)
    policy = make_policy(model.to(CUDA).eval(), byte_tokenizer(), device=CUDA)
    policy.low_precision, policy.eos_ids = low_precision, frozenset()
    return in_dtype(policy, torch.bfloat16)


def in_dtype(policy: Policy, dtype: torch.dtype) -> Policy:
    """Checked in float32, as `load_policy` does."""
    check_head(policy)
    policy.shares_prompts, policy.compute_dtype = can_share_prompts(policy), dtype
    return policy


@pytest.mark.parametrize("family", [*FAMILIES, PARTIAL])
@pytest.mark.parametrize(("lora", "low_precision"), [(False, False), (True, True), (False, True)])
def test_fused_layers_sample_what_training_scores(family: str, lora: bool, low_precision: bool) -> None:
    """Log-probs of sampling against those of a training pass, and of layers that are not fused; then after an update of
    the weights, which lie in the joined matrices."""
    policy = bfloat16_policy(family, lora=lora, low_precision=low_precision)
    engine = sampler_of(policy)
    assert isinstance(engine, Engine)
    assert engine.fused
    prompts = [[5, 6, 7, 8]] * 3 + [[9]] * 2
    for step in range(2):
        done = sample(policy, prompts, max_new_tokens=12, sampling=Sampling(), seed=3, step=step)
        batch = batch_of([(prompt, done.ids_BT[row].tolist()) for row, prompt in enumerate(prompts)])
        with torch.no_grad():
            scored = score(policy, batch, Sampling()).logprobs_BT
        gap = (done.behaviour_BT - scored).abs()
        assert gap.mean() < 0.03, (float(gap.mean()), float(gap.max()))
        with torch.no_grad():
            for _, weight in policy.trainable():
                weight.add_(0.02 * torch.randn(weight.shape, device=CUDA).to(weight.dtype))
        policy.version += 1


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("lora", "low_precision"), [(False, False), (True, True)])
def test_fused_modules_have_the_gradients_of_the_plain_ones(family: str, lora: bool, low_precision: bool) -> None:
    """Both in bfloat16, whose rounding is the difference; float32 tells how large each one's error is. On one batch the
    errors differ by a factor of two either way, so their geometric means over many are compared."""
    policy = bfloat16_policy(family, lora=lora, low_precision=low_precision)
    assert fuse_modules(policy.causal)
    sums = [getattr(layer, "fused", False) for layer in decoder_layers(policy.causal)]
    assert sums == 2 * [family not in ("Gemma 2", "Gemma 3 text")]  # whose sums are of norms
    draw = torch.Generator().manual_seed(0)

    def ids(count: int) -> list[int]:
        return torch.randint(1, 250, (count,), generator=draw).tolist()

    def gradient(dtype: torch.dtype) -> torch.Tensor:
        policy.compute_dtype = dtype
        policy.model.zero_grad()
        scores = score(policy, batch, Sampling())
        (scores.logprobs_BT.sum() + 0.1 * scores.entropy_BT.sum()).backward()
        return torch.cat([weight.grad.double().flatten() for _, weight in policy.trainable()])

    ratios = []
    for _ in range(16):
        batch = on_cuda(batch_of([(ids(1 + row), ids(5 - row)) for row in range(4)]))
        fused = gradient(torch.bfloat16)
        with plain_modules():
            plain, exact = gradient(torch.bfloat16), gradient(torch.float32)
        assert not torch.equal(fused, plain)
        ratios.append((fused - exact).norm() / (plain - exact).norm())
    assert torch.stack(ratios).log().mean().exp() < 1.5, ratios


def on_cuda(batch: Batch) -> Batch:
    tensors = {f.name: getattr(batch.samples, f.name) for f in fields(batch.samples)}
    return batch.with_samples(**{name: t.to(CUDA) for name, t in tensors.items() if isinstance(t, torch.Tensor)})


def test_the_heads_kernels_are_its_formulas() -> None:
    from vigneron.policy import head_kernels
    from vigneron.policy.fused_head import _forward_statistics, _logit_gradient

    torch.manual_seed(0)
    logits = 5 * torch.randn(7, 9001, device=CUDA)
    logits[3], logits[3, 17] = -30, 40  # one token has all of the probability
    ids = torch.tensor([1, 9000, 4096, 17, 8191, 5, 6], device=CUDA)
    for temperature in (1.0, 0.7):
        expected = _forward_statistics(logits, ids, temperature, None, False)
        for got, wanted in zip(head_kernels.statistics(logits, ids, temperature), expected, strict=True):
            torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)
        own = (expected[2], expected[1], *torch.randn(2, 7, device=CUDA))
        wanted = _logit_gradient(logits, ids, temperature, own, (), False, torch.float32)
        got = head_kernels.gradient(logits, ids, temperature, own, torch.float32)
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_heads_gradient_is_the_sum_over_chunks(dtype: torch.dtype) -> None:
    """In bfloat16 against double precision; `dtype` is the weight's own."""
    from vigneron.policy.fused_head import HEAD_CHUNK, Head, token_statistics

    torch.manual_seed(0)
    count, size, vocabulary = 2 * HEAD_CHUNK + 100, 64, 1000
    hidden = torch.randn(count, size, device=CUDA).to(torch.bfloat16).requires_grad_()
    weight = (0.3 * torch.randn(vocabulary, size, device=CUDA)).to(torch.bfloat16).to(dtype).requires_grad_()
    ids, share = torch.randint(vocabulary, (count,), device=CUDA), torch.randn(2, count, device=CUDA)
    found = token_statistics(Head(weight, torch.bfloat16), hidden, ids, 0.7)
    (found.chosen_N * share[0] + found.entropy_N * share[1]).sum().backward()
    exact_hidden, exact_weight = (x.detach().double().requires_grad_() for x in (hidden, weight))
    logprobs = sampled_logprobs(exact_hidden @ exact_weight.t(), Sampling(0.7))
    (chosen_logprobs(logprobs, ids) * share[0] + entropy(logprobs) * share[1]).sum().backward()
    for got, exact in ((hidden.grad, exact_hidden.grad), (weight.grad, exact_weight.grad)):
        assert (got.double() - exact).norm() < 5e-3 * exact.norm()


@pytest.mark.parametrize("vocabulary", [17, 256, 300, 49152, 151936])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_draw_kernel_is_its_formulas(vocabulary: int, temperature: float) -> None:
    """In double precision; a draw may differ where rounding decides."""
    from vigneron.rollout.engine.draw_kernel import draw_tokens

    torch.manual_seed(0)
    logits = 4 * torch.randn(500, vocabulary, device=CUDA)
    logits[3], logits[3, -1] = -30, 40  # one token has all of the probability
    logits[4, ::2] = -torch.inf
    logits[5] = 0
    key, written = draw_keys(2**40, 5, torch.arange(500, device=CUDA)), torch.arange(500, device=CUDA)
    exact = sampled_logprobs(logits.double(), Sampling(temperature))
    token, logprob = draw_tokens(logits, key, written, temperature)
    assert float((token == draw(exact.exp(), uniform_at(key, written))).double().mean()) >= 0.998
    torch.testing.assert_close(logprob, chosen_logprobs(exact, token).float(), atol=1e-5, rtol=1e-5)
    assert token[3] == vocabulary - 1
    assert token[4] % 2 == 1
    logits[6], logits[7, 3], logits[8] = torch.nan, torch.nan, -torch.inf
    token, logprob = draw_tokens(logits, key, written, temperature)
    assert logprob[6:9].isnan().all()
    assert logprob[9:].isfinite().all()
    assert 0 <= int(token.min()) <= int(token.max()) < vocabulary


@pytest.mark.parametrize("family", ["Llama", "Mistral v0.1 (window)", "gpt-oss"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_long_prompts_in_parts_and_few_rows_change_only_rounding(
    family: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts in parts of 16 tokens; a cache for some rows and their prompts, refilled; the cache given back."""
    policy = in_dtype(make_policy(zoo_model(family).to(CUDA), byte_tokenizer(), device=CUDA), dtype)
    policy.eos_ids = frozenset()
    prompts = [[(3 * i + j) % 250 + 1 for j in range(5 + 4 * i)] for i in range(10) for _ in range(4)]
    options: dict[str, Any] = {"max_new_tokens": 10, "sampling": Sampling(), "seed": 1}
    whole = sample(policy, prompts, **options)
    monkeypatch.setattr(engine_module, "PREFILL_TOKENS", 16)
    monkeypatch.setattr(key_value_cache, "LARGE", 0)
    policy.sampler = None
    engine: Any = sampler_of(policy)
    engine._cache._limit = 5 * 64 * engine._cache.token_bytes
    for _ in range(2):
        parts = sample(policy, prompts, **options)
        assert engine._cache.room.rows < len(prompts)
        if engine._cache.room.prompts:
            assert not engine._cache._memory.held
        same = (whole.ids_BT == parts.ids_BT).cumprod(1).bool()  # up to the first token that rounding has changed
        gap = (whole.behaviour_BT - parts.behaviour_BT).abs()[same]
        assert same.float().mean() > 0.8
        assert gap.mean() < (0.03 if dtype == torch.bfloat16 else 1e-5)
