"""Bases in 4 bits under an adapter: the numbers of NF4, exact products, and what is refused."""

import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaForCausalLM

from support.later import Later
from support.small_batch import batch_of
from support.tiny_models import byte_tokenizer, tiny_model
from vigneron.core.draws import Sampling
from vigneron.errors import UserError
from vigneron.policy.fisher import fisher_product
from vigneron.policy.held_weights import is_quantised
from vigneron.policy.load import load_policy
from vigneron.policy.logprobs import score
from vigneron.policy.lora import Lora
from vigneron.policy.model import Policy
from vigneron.policy.quantised import dequantised, to_float32
from vigneron.training.checkpoint.read import weights_identity

BATCH = batch_of([([1, 2, 3], [4, 5, 6]), ([7], [8, 9])])
# QLoRA, appendix E.
NF4 = torch.tensor([
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
])  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("model")
    tiny_model("llama").save_pretrained(place)
    byte_tokenizer().save_pretrained(place)
    return str(place)


def quantised_policy(folder: str, dtype: str = "float32", weights: str = "4bit") -> Policy:
    torch.manual_seed(0)
    policy = load_policy(folder, device="cpu", dtype=dtype, weights=weights, lora=Lora(4))  # type: ignore[arg-type]
    with torch.no_grad():
        for _, weight in policy.trainable():
            weight.add_(torch.randn_like(weight), alpha=0.05)
    return policy


def plain_copy(policy: Policy) -> Policy:
    copy = deepcopy(policy)
    to_float32(copy.model)
    copy.low_precision = False
    return copy


def layers_of(policy: Policy) -> dict[str, Any]:
    return {n.replace(".base_layer", ""): m for n, m in policy.causal.named_modules() if is_quantised(m)}


def test_layers_hold_nf4_in_blocks_of_64(folder: str) -> None:
    """Each number is the nearest of the 16 codes, times its block's largest number, which 8 bits round by up to 1 %."""
    stored = LlamaForCausalLM.from_pretrained(folder)
    layers = layers_of(quantised_policy(folder))
    assert len(layers) == 14  # all linear layers but the head
    for name, layer in layers.items():
        assert layer.weight.dtype == torch.uint8
        assert layer.weight.numel() == layer.in_features * layer.out_features // 2
        blocks = stored.get_parameter(f"{name}.weight").detach().reshape(-1, 64)
        largest = blocks.abs().amax(1, keepdim=True)
        expected = NF4[(blocks[..., None] / largest[..., None] - NF4).abs().argmin(-1)] * largest
        assert (dequantised(layer).reshape(-1, 64) - expected).abs().max() < 0.01 * largest.max(), name


def test_scores_gradients_and_fisher_products_are_those_of_the_dequantised_model(folder: str) -> None:
    ours = quantised_policy(folder)
    plain = plain_copy(ours)
    assert not layers_of(plain)
    results = []
    for policy in (ours, plain):
        logprobs_BT = score(policy, BATCH, Sampling()).logprobs_BT
        logprobs_BT.sum().backward()
        vector_P = torch.linspace(-1, 1, sum(w.numel() for _, w in policy.trainable()))
        product_P = fisher_product(policy, BATCH, vector_P, sampling=Sampling(), microbatch_tokens=100)
        results.append([logprobs_BT.detach(), product_P, *(w.grad for _, w in policy.trainable())])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    assert all(layer.weight.grad is None for layer in layers_of(ours).values())


@pytest.mark.slow
def test_in_bfloat16_layers_compute_as_autocast_does(folder: str) -> None:
    ours = quantised_policy(folder, "bfloat16")
    plain = plain_copy(ours)
    with torch.no_grad():
        one, other = (score(p, BATCH, Sampling()).logprobs_BT for p in (ours, plain))
        in_float32 = score(plain_copy(quantised_policy(folder)), BATCH, Sampling()).logprobs_BT
        assert (one - in_float32).abs().max() > 0
    torch.testing.assert_close(one, other, rtol=0, atol=1e-3)
    for (name, a), (_, b) in zip(ours.trainable(), quantised_policy(folder).trainable(), strict=True):
        assert torch.equal(a, b), name
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        layer = next(iter(layers_of(ours).values()))
        assert layer(torch.ones(1, layer.in_features)).dtype == torch.bfloat16


def test_the_identity_is_of_the_packed_weights_whatever_the_compute_dtype(folder: str, tmp_path: Path) -> None:
    ours = weights_identity("", quantised_policy(folder))
    assert weights_identity("", quantised_policy(folder, "bfloat16")) == ours
    other = LlamaForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        other.model.layers[1].mlp.up_proj.weight[0, 0] += 1
    other.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    assert weights_identity("", quantised_policy(str(tmp_path))) != ours


@pytest.mark.parametrize("weights", ["auto", pytest.param("4bit", marks=pytest.mark.slow)])
def test_a_checkpoint_in_4_bits_is_loaded_as_it_is(folder: str, tmp_path: Path, weights: str) -> None:
    packed_checkpoint(folder, tmp_path)
    ours, direct = quantised_policy(str(tmp_path), weights=weights), quantised_policy(folder)
    assert not hasattr(ours.causal.config, "quantization_config")
    with torch.no_grad():
        assert torch.equal(*(score(p, BATCH, Sampling()).logprobs_BT for p in (ours, direct)))
    with pytest.raises(UserError, match=r"is stored in 4 bits: set `model.lora` and `model.weights: 4bit`"):
        load_policy(str(tmp_path), device="cpu")
    with pytest.raises(UserError, match=r"is not supported with sharding: set scale.shard=1"):
        load_policy(str(tmp_path), device="cpu", lora=Lora(4), shared=True)


def packed_checkpoint(folder: str, place: Path) -> None:
    options = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True)
    stored = AutoModelForCausalLM.from_pretrained(folder, quantization_config=options, device_map={"": "cpu"})
    stored.save_pretrained(place)
    byte_tokenizer().save_pretrained(place)


def test_a_frozen_model_in_4_bits_is_loaded_whatever_its_dtype(folder: str, tmp_path: Path) -> None:
    """As a parent is, with products in bfloat16: what is not in 4 bits is rounded, which is noted."""
    packed_checkpoint(folder, tmp_path)
    notices: list[str] = []
    parent = load_policy(
        str(tmp_path), device="cpu", dtype="bfloat16", weights="bfloat16", trained=False, notice=notices.append
    )
    assert len(layers_of(parent)) == 14
    assert notices == [f"model: '{tmp_path}': its weights in F32 are rounded to bfloat16"]
    assert parent.causal.get_input_embeddings().weight.dtype == torch.bfloat16
    with torch.no_grad():
        assert score(parent, BATCH, Sampling()).logprobs_BT.isfinite().all()


def test_files_that_are_not_as_packed_as_the_config_says(folder: str, tmp_path: Path) -> None:
    packed_checkpoint(folder, tmp_path)
    packed = load_file(tmp_path / "model.safetensors")
    name, plain = "model.layers.0.mlp.up_proj.weight", load_file(Path(folder) / "model.safetensors")
    half = {key: weight for key, weight in packed.items() if not key.startswith(name)} | {name: plain[name]}
    for weights, line in (
        (plain, "says that it is stored in 4 bits, and its files have plain weights: take `quantization_config` out"),
        (half, f"model: {name} is not stored in 4 bits, though the model's config.json says so"),
    ):
        save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
        with pytest.raises(UserError, match=line):
            quantised_policy(str(tmp_path), weights="auto")


def test_copies_share_nothing_and_critics_train(folder: str) -> None:
    policy = quantised_policy(folder)
    frozen, critic = policy.frozen_copy(), policy.trainable_copy()
    with torch.no_grad():
        expected = score(policy, BATCH, Sampling()).logprobs_BT
        for _, weight in policy.trainable():
            weight.add_(1)
        for copy in (frozen, critic):
            assert torch.equal(score(copy, BATCH, Sampling()).logprobs_BT, expected)
    assert [name for name, _ in critic.trainable()] == [name for name, _ in policy.trainable()]


def test_without_the_library_the_extra_is_named(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(UserError, match=r"4bit needs bitsandbytes: pip install 'vigneron\[quant\]'"):
        quantised_policy(folder)


def test_a_library_that_fails_on_the_device_is_named(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no kernel\nfor this GPU")

    monkeypatch.setattr(Later("bitsandbytes").functional, "quantize_4bit", fail)
    with pytest.raises(UserError, match=r"4bit needs bitsandbytes, which fails on 'cpu': no kernel$"):
        quantised_policy(folder)


def test_a_model_without_linear_layers_is_refused(tmp_path: Path) -> None:
    tiny_model("gpt2").save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(UserError, match="'gpt2' has no linear layers that bitsandbytes can hold"):
        quantised_policy(str(tmp_path))
