"""Weights in bfloat16 and 4 bits on a CUDA device: memory, the same numbers as in float32, and exact resumes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from support.resuming import check_third_arm, drawing_reward, lose_nothing
from support.small_batch import batch_of
from support.tiny_models import byte_tokenizer, tiny_model
from support.tiny_runs import tiny_config, write_data
from vigneron import api
from vigneron.core.draws import Sampling
from vigneron.policy.load import load_policy
from vigneron.policy.logprobs import score
from vigneron.policy.lora import Lora
from vigneron.policy.model import Policy
from vigneron.policy.quantised import to_float32
from vigneron.training.checkpoint.read import weights_identity

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
GRPO: dict[str, Any] = {
    "method": {"name": "grpo", "kl": {"coefficient": 1e-3}},
    "optimizer": {"actor_lr": 1e-3},
    "reward": {"kind": "python", "function": f"{drawing_reward.__module__}:drawing_reward"},
    "steps": 8,
    "prompts_per_step": 2,
    "eval_every": 0,
}
MODELS: dict[str, dict[str, Any]] = {
    "held": {"lora": {"rank": 2}},
    "bfloat16": {"weights": "bfloat16"},
    "4bit": {"weights": "4bit", "lora": {"rank": 2}},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("model")
    tiny_model("llama").to(torch.bfloat16).save_pretrained(place)
    byte_tokenizer().save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def larger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """126 million weights in linear layers, 0.5 million in the embeddings."""
    place = tmp_path_factory.mktemp("larger")
    shape: dict[str, Any] = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 8, "vocab_size": 260}
    config = LlamaConfig(**shape, num_attention_heads=16, bos_token_id=0, eos_token_id=0, pad_token_id=0)
    AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(place)
    byte_tokenizer().save_pretrained(place)
    return place


def loaded(folder: Path, device: str = "cuda", **options: Any) -> Policy:
    torch.manual_seed(0)
    return load_policy(str(folder), device=device, lora=Lora(4), **{"dtype": "bfloat16", **options})


def results(policy: Policy) -> list[torch.Tensor]:
    with policy.device:
        batch = batch_of([([1, 2, 3], [4, 5, 6]), ([7], [8, 9])])
    logprobs_BT = score(policy, batch, Sampling()).logprobs_BT
    logprobs_BT.sum().backward()
    return [logprobs_BT.detach(), *(weight.grad for _, weight in policy.trainable() if weight.grad is not None)]


@pytest.mark.parametrize(("weights", "bytes_per_weight"), [("auto", 2.0), ("4bit", 0.53), ("float32", 4.0)])
def test_a_base_takes_no_more_than_its_bits(larger: Path, weights: str, bytes_per_weight: float) -> None:
    """4 bits, and 8.127 / 64 bits for the blocks' scales (QLoRA, section 3)."""
    before = torch.cuda.memory_allocated()
    policy = loaded(larger, weights=weights)
    linear = sum(m.in_features * m.out_features for m in policy.causal.modules() if isinstance(m, torch.nn.Linear))
    taken = torch.cuda.memory_allocated() - before
    adapter = sum(weight.nbytes for _, weight in policy.trainable())
    assert taken - adapter < 1.05 * bytes_per_weight * linear + 4 * 2**20


def test_a_base_in_bfloat16_changes_no_bit(folder: Path) -> None:
    ours, plain = loaded(folder), loaded(folder, weights="float32")
    assert ours.low_precision
    assert not plain.low_precision
    for one, other in zip(results(ours), results(plain), strict=True):
        assert torch.equal(one, other)
    assert weights_identity("", ours) == weights_identity("", loaded(folder, "cpu", dtype="float32"))


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("bfloat16", 5e-2)])
def test_4_bits_compute_as_the_dequantised_model(larger: Path, dtype: str, tolerance: float) -> None:
    ours = loaded(larger, weights="4bit", dtype=dtype)
    got = results(ours)
    for _, weight in ours.trainable():
        weight.grad = None
    to_float32(ours.model)
    ours.low_precision = False
    for one, other in zip(got, results(ours), strict=True):
        assert (one.float() - other).norm() <= tolerance * other.norm()


def test_a_gpu_quantises_as_a_cpu(larger: Path) -> None:
    """A code may differ where a number lies between two of them, and a scale by its rounding to 8 bits."""
    models = [loaded(larger, device, weights="4bit") for device in ("cuda", "cpu")]
    for policy in models:
        to_float32(policy.model)
    for (name, one), (_, other) in zip(*(p.causal.named_parameters() for p in models), strict=True):
        if "lora_" not in name:
            assert (one.cpu() - other).norm() <= 2e-2 * other.norm(), name


@pytest.mark.parametrize("kind", MODELS)
def test_a_resumed_run_is_the_same(folder: Path, tmp_path: Path, kind: str) -> None:
    model = {"name": str(folder), "device": "cuda", "dtype": "bfloat16", **MODELS[kind]}
    whole = api.train(tiny_config(folder, write_data(tmp_path), **GRPO, model=model), name="whole", runs=tmp_path)
    place = tmp_path / "again"
    place.mkdir()
    check_third_arm(whole.folder, place, lose_nothing)
