"""Whole models with the engine's kernels and fused layers, against passes of training and layers that are not fused."""

from dataclasses import fields
from itertools import product
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from support.kernels import DEVICE, INTERPRETED
from support.small_batch import batch_of
from support.tiny_models import byte_tokenizer
from support.zoo import zoo_model
from vigneron.batch import Batch
from vigneron.core.draws import Sampling
from vigneron.policy.compiling import decoder_layers
from vigneron.policy.fused_class import plain_modules
from vigneron.policy.fused_modules import fuse_modules
from vigneron.policy.held_weights import hold_in_bfloat16
from vigneron.policy.load import make_policy
from vigneron.policy.logprobs import score
from vigneron.policy.lora import Lora, add_lora
from vigneron.policy.model import Policy
from vigneron.policy.model_checks import check_head
from vigneron.policy.packing import can_share_prompts
from vigneron.rollout.engine import cached_attention, decode_tiles, key_value_cache
from vigneron.rollout.engine import engine as engine_module
from vigneron.rollout.engine.engine import Engine
from vigneron.rollout.engine.sample import sample, sampler_of
from vigneron.rollout.engine.schedule import CHECK_EVERY, Schedule

pytestmark = pytest.mark.slow

FAMILIES = ["Llama", "Qwen2", "Qwen3", "Gemma", "Gemma 2", "Gemma 3 text", "Mistral v0.1 (window)", "Phi-3", "SmolLM3"]
PARTIAL = "Phi-3, half of each head turned"
# A family, whether it has LoRA, whether it is held in bfloat16. The interpreter takes 10 to 20 s for a case.
SAMPLED = [(family, *held) for family in (*FAMILIES, PARTIAL) for held in ((False, False), (True, True), (False, True))]
TRAINED = [(family, *held) for family in FAMILIES for held in ((False, False), (True, True))]
IN_PARTS = list(product(("Llama", "Mistral v0.1 (window)", "gpt-oss"), (torch.float32, torch.bfloat16)))
if INTERPRETED:
    SAMPLED = [("Llama", True, True), ("Gemma 3 text", False, False)]
    TRAINED = [("Llama", True, True), ("Gemma 3 text", False, False)]
    IN_PARTS = []  # the last test has prompts in parts too


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
    policy = make_policy(model.to(DEVICE).eval(), byte_tokenizer(), device=DEVICE)
    policy.low_precision, policy.eos_ids = low_precision, frozenset()
    return in_dtype(policy, torch.bfloat16)


def in_dtype(policy: Policy, dtype: torch.dtype) -> Policy:
    """Checked in float32, as `load_policy` does."""
    check_head(policy)
    policy.shares_prompts, policy.compute_dtype = can_share_prompts(policy), dtype
    return policy


@pytest.mark.parametrize(("family", "lora", "low_precision"), SAMPLED)
def test_fused_layers_sample_what_training_scores(family: str, lora: bool, low_precision: bool) -> None:
    """Log-probs of sampling against those of a training pass, and of layers that are not fused; then after an update of
    the weights, which lie in the joined matrices."""
    policy = bfloat16_policy(family, lora=lora, low_precision=low_precision)
    engine = sampler_of(policy)
    assert isinstance(engine, Engine)
    assert engine.fused
    prompts = [[5, 6, 7, 8]] * 3 + [[9]] * 2
    for step in range(2):
        done = sample(policy, prompts, max_new_tokens=4 if INTERPRETED else 12, sampling=Sampling(), seed=3, step=step)
        batch = batch_of([(prompt, done.ids_BT[row].tolist()) for row, prompt in enumerate(prompts)])
        with torch.no_grad():
            scored = score(policy, batch, Sampling()).logprobs_BT
        gap = (done.behaviour_BT - scored).abs()
        assert gap.mean() < 0.03, (float(gap.mean()), float(gap.max()))
        with torch.no_grad():
            for _, weight in policy.trainable():
                weight.add_(0.02 * torch.randn(weight.shape, device=DEVICE).to(weight.dtype))
        policy.version += 1


@pytest.mark.parametrize(("family", "lora", "low_precision"), TRAINED)
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
    for _ in range(4 if INTERPRETED else 16):
        batch = on_device(batch_of([(ids(1 + row), ids(5 - row)) for row in range(4)]))
        fused = gradient(torch.bfloat16)
        with plain_modules():
            plain, exact = gradient(torch.bfloat16), gradient(torch.float32)
        assert not torch.equal(fused, plain)
        ratios.append((fused - exact).norm() / (plain - exact).norm())
    assert torch.stack(ratios).log().mean().exp() < 1.5, ratios


def on_device(batch: Batch) -> Batch:
    tensors = {f.name: getattr(batch.samples, f.name) for f in fields(batch.samples)}
    return batch.with_samples(**{name: t.to(DEVICE) for name, t in tensors.items() if isinstance(t, torch.Tensor)})


@pytest.mark.parametrize(("family", "dtype"), IN_PARTS)
def test_long_prompts_in_parts_and_few_rows_change_only_rounding(
    family: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts in parts of 16 tokens; a cache for some rows and their prompts, refilled; the cache given back."""
    policy = in_dtype(make_policy(zoo_model(family).to(DEVICE), byte_tokenizer(), device=DEVICE), dtype)
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
        if engine._cache.paged:
            assert not engine._cache._memory.held
        same = (whole.ids_BT == parts.ids_BT).cumprod(1).bool()  # up to the first token that rounding has changed
        gap = (whole.behaviour_BT - parts.behaviour_BT).abs()[same]
        assert same.float().mean() > 0.8
        assert gap.mean() < (0.03 if dtype == torch.bfloat16 else 1e-5)


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of 16 tokens."""
    monkeypatch.setattr(decode_tiles, "CHOICES", decode_tiles.CHOICES[2:])  # blocks that divide such a page
    monkeypatch.setattr(cached_attention, "choose_tiles", decode_tiles.choose_tiles.__wrapped__)
    for module in (cached_attention, decode_kernel_module(), engine_module, key_value_cache):
        monkeypatch.setattr(module, "PAGE", 16)


@pytest.mark.usefixtures("small_pages")
def test_preempted_samples_change_only_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Completions that end anywhere up to 40 tokens, in so few pages that some lose theirs, behind prompts in parts of
    16 tokens."""
    policy = in_dtype(make_policy(zoo_model("Llama").to(DEVICE), byte_tokenizer(), device=DEVICE), torch.float32)
    policy.eos_ids = frozenset(range(3, 11))
    prompts = [[(3 * i + j) % 250 + 1 for j in range(5 + 15 * i)] for i in range(2) for _ in range(3)]
    options: dict[str, Any] = {"max_new_tokens": 40, "sampling": Sampling(), "seed": 1}
    whole = sample(policy, prompts, **options)
    assert 10 < whole.lengths_B.float().mean() < 35
    preempted: list[int] = []
    preempt = Schedule._preempt
    monkeypatch.setattr(Schedule, "_preempt", lambda *given: (preempted.extend(given[1]), preempt(*given)))
    monkeypatch.setitem(CHECK_EVERY, "cuda", CHECK_EVERY["cpu"])
    monkeypatch.setattr(engine_module, "PREFILL_TOKENS", 16)
    policy.sampler = None
    engine: Any = sampler_of(policy)
    engine._cache._limit = 9 * 16 * engine._cache.token_bytes
    parts = sample(policy, prompts, **options)
    assert engine._cache.room.pages == 9
    assert preempted
    assert torch.equal(whole.ids_BT, parts.ids_BT)
    torch.testing.assert_close(whole.behaviour_BT, parts.behaviour_BT, atol=1e-4, rtol=0)


@pytest.mark.usefixtures("small_pages")
def test_a_graph_of_a_prompts_part_has_the_pages_that_its_key_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts of 30 and 58 tokens begin with the same part: it is one graph, whose inputs have one shape."""
    monkeypatch.setattr(engine_module, "PREFILL_TOKENS", 16)
    policy = in_dtype(make_policy(zoo_model("Llama").to(DEVICE), byte_tokenizer(), device=DEVICE), torch.float32)
    policy.eos_ids = frozenset()
    engine: Any = sampler_of(policy)
    assert engine.paged
    run_pass, shapes = engine._pass, {}

    def noted(key: Any, tokens: int, function: Any, inputs: list[torch.Tensor]) -> Any:
        sizes = [tuple(each.shape) for each in inputs]
        assert shapes.setdefault(key, sizes) == sizes
        return run_pass(key, tokens, function, inputs)

    monkeypatch.setattr(engine, "_pass", noted)
    logprobs = {}
    for width in (58, 30, 30, 58):
        prompt = [(7 * i) % 250 + 1 for i in range(width)]
        done = sample(policy, [prompt], max_new_tokens=4, sampling=Sampling(), seed=1)
        torch.testing.assert_close(logprobs.setdefault(width, done.behaviour_BT), done.behaviour_BT)
    assert {first for *_, first in shapes} == {0, 16, 32, 48}


def decode_kernel_module() -> Any:
    from vigneron.rollout.engine import decode_kernel

    return decode_kernel
