"""The memory plan against torch's measured peak, on a model of 0.3 billion random weights."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from support.tiny_models import byte_tokenizer
from vigneron import api
from vigneron.config import Config
from vigneron.policy.load import load_policy, speed_up
from vigneron.policy.lora import Lora
from vigneron.policy.model import Reference
from vigneron.recipe import check_config
from vigneron.rollout.engine import cuda_memory
from vigneron.training.memory import find_sizes
from vigneron.training.memory_parts import GB
from vigneron.training.memory_plan import CONTEXT_BYTES, estimate

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

SHAPE = {
    "vocab_size": 32768,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
PROMPT, NEW = 64, 192


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    AutoModelForCausalLM.from_config(Qwen2Config(**SHAPE), dtype=torch.bfloat16).save_pretrained(path)
    byte_tokenizer().save_pretrained(path)
    return path


def config_of(tmp_path: Path, folder: Path, **changes: Any) -> Config:
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps({"prompt": "x" * PROMPT, "answer": "y"}) + "\n" for _ in range(64)))
    given = {
        "method": {"name": "grpo"},
        "model": {"name": str(folder), "device": "cuda", "dtype": "bfloat16", "graphs": False, **changes},
        "data": {"train": str(data)},
        "reward": {"kind": "binary"},
        "steps": 3,
        "prompts_per_step": 8,
        "group_size": 8,
        "max_new_tokens": NEW,
        "microbatch_tokens": 4096,
        "eval_every": 0,
        "save_every": 0,
    }
    return check_config(given, "plan")


@pytest.mark.parametrize(
    "changes",
    [{}, {"lora": {"rank": 16}}, {"activation_checkpointing": True}, {"weights": "bfloat16"}, {"graphs": True}],
    ids=["float32", "LoRA", "checkpointing", "bfloat16", "graphs"],
)
def test_the_plan_is_within_a_tenth_of_the_measured_peak(tmp_path: Path, folder: Path, changes: dict[str, Any]) -> None:
    config = config_of(tmp_path, folder, **changes)
    plan = estimate(config, PROMPT)
    assert plan is not None
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run = api.train(config, name="plan", runs=tmp_path)
    measured = torch.cuda.max_memory_allocated() - before
    records = [json.loads(line) for line in (run.folder / "timings.jsonl").read_text().splitlines()]
    assert records[0]["memory/peak_allocated_gb"] > 0
    shown = {part.name: round(part.bytes / GB, 2) for part in plan.parts}
    said = f"measured {measured / GB:.2f} GB, parts {shown}"
    if changes.get("graphs"):  # the plan's worst case: a shape that is new after the first step
        assert 0.6 * plan.allocated_bytes <= measured <= 1.1 * plan.allocated_bytes, said
    else:
        assert plan.allocated_bytes == pytest.approx(measured, rel=0.1), said


@pytest.mark.parametrize("lora", [None, Lora(16)], ids=["float32", "LoRA"])
def test_the_plan_has_the_tokens_that_fit(
    tmp_path: Path, folder: Path, lora: Lora | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`find_sizes` and the plan, for 14 GB."""
    adapter = {} if lora is None else {"lora": {"rank": lora.rank}}
    config = config_of(tmp_path, folder, **adapter).model_copy(update={"microbatch_tokens": "auto"})
    plan = estimate(config, PROMPT, gigabytes=14)
    assert plan is not None
    policy = load_policy(str(folder), device="cuda", dtype="bfloat16", lora=lora)
    reference = Reference.of(policy)
    speed_up(policy, reference, graphs=False, compiled=False)
    other = torch.cuda.memory_allocated() - sum(
        weight.nbytes
        for each in {id(p): p for p in (policy, reference.policy)}.values()
        for weight in each.model.parameters()
    )
    monkeypatch.setattr(cuda_memory, "_limit", 14 * GB - CONTEXT_BYTES + other)
    sizes = find_sizes(policy, PROMPT + NEW, config.optimizer, may_checkpoint=True)
    assert sizes.checkpointing == plan.checkpointing
    assert plan.microbatch_tokens == pytest.approx(sizes.microbatch_tokens, rel=0.2)
