"""The memory plan against peaks that were measured on an H200 (torch 2.11, transformers 5.17, November 2026), on models
of the real shapes with random weights: prompts of 128 tokens, 8 completions of 256 tokens each, bfloat16 compute."""

from typing import Any

import pytest
from transformers import LlamaConfig, Qwen2Config

from vigneron.config import Config
from vigneron.recipe import check_config
from vigneron.training.memory_parts import Plan
from vigneron.training.memory_plan import RunMemory
from vigneron.values import GB

H200 = 139.8
PROMPT, NEW, GROUP = 128, 256, 8
GROUP_TOKENS = 2276
"""Of `microbatch_tokens`, so that a pass has one group more."""
SHAPES = {
    "1.5B": Qwen2Config(
        vocab_size=151936,
        hidden_size=1536,
        intermediate_size=8960,
        num_hidden_layers=28,
        num_attention_heads=12,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    ),
    "8B": LlamaConfig(
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        tie_word_embeddings=False,
    ),
}
LORA = {"lora": {"rank": 16}}


@pytest.fixture(scope="module")
def memories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, RunMemory]]:
    """Folders with a config and no weights."""
    found = {}
    for name, shape in SHAPES.items():
        folder = tmp_path_factory.mktemp("model")
        shape.save_pretrained(folder)
        memory = RunMemory.of(config_of(str(folder)), PROMPT)
        assert memory is not None
        found[name] = str(folder), memory
    return found


def config_of(folder: str, tokens: int | str = 4096, prompts: int = 16, **changes: Any) -> Config:
    given = {
        "method": {"name": "grpo", "kl": {"estimator": "k3"}},
        "data": {"task": "antonyms"},
        "reward": {"kind": "binary"},
        "prompts_per_step": prompts,
        "group_size": GROUP,
        "max_new_tokens": NEW,
        "microbatch_tokens": tokens,
        "steps": 10,
        **changes,
    }
    given["model"] = {"name": folder, "dtype": "bfloat16", **given.get("model", {})}
    return check_config(given, "measured")


def plan_of(memories: dict[str, tuple[str, RunMemory]], name: str, *, gigabytes: float = H200, **given: Any) -> Plan:
    folder, memory = memories[name]
    return memory.plan(config_of(folder, **given), gigabytes)


@pytest.mark.parametrize(
    ("name", "model", "groups", "before", "peak"),
    [
        ("1.5B", {}, 7, 17.8, 57.4),
        ("1.5B", {}, 3, 17.8, 37.9),
        ("8B", LORA, 7, 15.4, 95.2),
        ("8B", LORA, 3, 15.4, 50.3),
        ("8B", LORA, 1, 15.4, 27.9),
    ],
)
def test_a_pass_over_groups(memories: Any, name: str, model: Any, groups: int, before: float, peak: float) -> None:
    """`torch.cuda.max_memory_allocated` in `score` and backward, and what was allocated before, in GB; no graphs."""
    model = {**model, "graphs": False}
    plan = plan_of(memories, name, tokens=groups * GROUP_TOKENS, prompts=3 * groups, model=model)
    of_pass = sum(part.bytes for part in plan.parts if part.name in ("activations", "head and temporaries"))
    assert of_pass / GB == pytest.approx(peak - before, rel=0.1)


@pytest.mark.parametrize(
    ("name", "prompts", "changes", "peak"),
    [
        ("1.5B", 32, {}, 51.96e9),
        ("8B", 16, {"model": LORA}, 37.17e9),
        ("8B", 16, {"model": {"weights": "bfloat16"}, "optimizer": {"kind": "adamw_8bit"}}, 88.55e9),
    ],
    ids=["1.5B, float32", "8B, LoRA", "8B, bfloat16, 8-bit AdamW"],
)
def test_a_run(memories: Any, name: str, prompts: int, changes: Any, peak: float) -> None:
    """The peak of `memory/peak_allocated_gb` in steps of GRPO with 4,096 tokens in a pass. The first run had graphs."""
    plan = plan_of(memories, name, prompts=prompts, **changes)
    assert plan.allocated_bytes == pytest.approx(peak, rel=0.1)
    assert ("gradients of CUDA graphs" in {part.name for part in plan.parts}) == (name == "1.5B")


def test_auto_takes_what_fits(memories: Any) -> None:
    """All of a large GPU's tokens; fewer, recomputed ones where few fit; what is chosen fits."""
    large = plan_of(memories, "8B", tokens="auto", model=LORA)
    assert (large.microbatch_tokens, large.checkpointing) == (16384, False)
    small = plan_of(memories, "8B", tokens="auto", model=LORA, gigabytes=24)
    assert small.checkpointing
    assert small.least_bytes <= 24 * GB
    middle = plan_of(memories, "8B", tokens="auto", model=LORA, gigabytes=48)
    assert 4096 <= middle.microbatch_tokens < 16384
    assert not middle.checkpointing
    assert middle.least_bytes <= 48 * GB
