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
from vigneron.policy.reference import Reference
from vigneron.recipe import check_config
from vigneron.rollout.engine import cuda_memory
from vigneron.run_store.folder import RunFolder
from vigneron.training.held_parts import CONTEXT_BYTES
from vigneron.training.memory import MOST_TOKENS, find_sizes, reference_states_bytes
from vigneron.training.memory_plan import RunMemory, _Counting, estimate
from vigneron.training.method_copies import Copies
from vigneron.training.sampling_graphs import sampling_graph_bytes
from vigneron.values import GB

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


@pytest.fixture(autouse=True)
def room() -> None:
    """A run plans with what is free: where others have the GPU, its sizes are smaller ones."""
    free, _ = torch.cuda.mem_get_info()
    if free < 30 * GB:
        pytest.skip(f"other processes have the GPU: {free / GB:.1f} GB are free")


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
    [
        {},
        {"lora": {"rank": 16}},
        {"activation_checkpointing": True},
        {"weights": "bfloat16"},
        {"offload_reference": True},
        {"graphs": True},
    ],
    ids=["float32", "LoRA", "checkpointing", "bfloat16", "reference offloaded", "graphs"],
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


def test_a_run_that_samples_nothing_keeps_no_cache_size(tmp_path: Path, folder: Path) -> None:
    """Its other sizes are found at the start and kept, and a resume takes them."""
    pairs = tmp_path / "pairs.jsonl"
    rows = ({"prompt": f"{number}", "chosen": "yes", "rejected": "no"} for number in range(8))
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = {
        "method": {"name": "dpo"},
        "model": {"name": str(folder), "device": "cuda", "dtype": "bfloat16"},
        "data": {"train": str(pairs)},
        "steps": 1,
        "prompts_per_step": 4,
        "eval_every": 0,
    }
    run = api.train(check_config(given, "pairs"), name="pairs", runs=tmp_path)
    config = RunFolder.open(run.folder).config()
    assert config.model.cache_gb is None
    assert isinstance(config.microbatch_tokens, int)
    assert config.model.activation_checkpointing is False
    check_config(config.model_dump(mode="json"), "as a new run")
    assert api.resume(run.folder, "steps=2").step == 2
    assert RunFolder.open(run.folder).config().microbatch_tokens == config.microbatch_tokens


@pytest.mark.parametrize(
    ("changes", "gigabytes"),
    [
        ({}, 14),
        ({"lora": {"rank": 16}}, 14),
        ({"graphs": True}, 14),
        ({"graphs": True}, 60),
        ({"offload_reference": True}, 12),
        ({"offload_reference": True, "graphs": True}, 60),
    ],
    ids=["float32", "LoRA", "no room for graphs", "graphs", "reference offloaded", "both"],
)
def test_the_plan_has_the_tokens_that_fit(
    tmp_path: Path, folder: Path, changes: dict[str, Any], gigabytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`find_sizes` and the plan: the same tokens, checkpointing and cache."""
    config = config_of(tmp_path, folder, **changes).model_copy(update={"microbatch_tokens": "auto"})
    memory = RunMemory.of(config, PROMPT)
    assert memory is not None
    planned = _Counting(memory, config, gigabytes).sizes
    policy = load_policy(str(folder), device="cuda", dtype="bfloat16", lora=Lora(16) if "lora" in changes else None)
    reference = Reference.of(policy)
    speed_up(policy, reference, graphs=config.model.graphs, compiled=False)
    if config.model.offload_reference:
        reference.offload()
        reference.keep_head()
    torch.cuda.empty_cache()
    other = torch.cuda.memory_reserved() - sum(
        weight.nbytes
        for each in {id(p): p for p in (policy, reference.policy)}.values()
        for weight in each.model.parameters()
        if weight.is_cuda
    )
    monkeypatch.setattr(cuda_memory, "_limit", gigabytes * GB - CONTEXT_BYTES + other)
    states = reference_states_bytes(config, SHAPE["hidden_size"])
    graphs = sampling_graph_bytes(config, policy.text_config, policy.size, PROMPT, MOST_TOKENS, held_out=1)
    options = {"may_checkpoint": True, "reference": reference, "reference_states": states, "sampling_graphs": graphs}
    sizes = find_sizes(policy, PROMPT + NEW, config.optimizer, copies=Copies.of(config), **options)
    assert (sizes.checkpointing, sizes.tight) == (planned.checkpointing, planned.tight)
    assert planned.microbatch_tokens == pytest.approx(sizes.microbatch_tokens, rel=0.2)
    assert planned.cache_bytes == pytest.approx(sizes.cache_bytes, rel=0.1)
