"""Out of memory: the setting to change is named, and earlier checkpoints are intact."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from support.tiny_models import GROUPED_HEADS, byte_tokenizer, tiny_policy
from support.tiny_runs import tiny_config, write_data
from vigneron.config import OptimizerConfig
from vigneron.core.rounding import CHUNK
from vigneron.errors import UserError
from vigneron.methods import build_method
from vigneron.training.callbacks import Silent
from vigneron.training.checkpoint.read import checkpoints, load_checkpoint
from vigneron.training.loop import train
from vigneron.training.memory import _moment_bytes, explained_memory
from vigneron.training.setup.start import start_run


def test_running_out_of_memory_names_the_settings_and_leaves_the_checkpoint(tmp_path: Path) -> None:
    """Row 26 of the faults. A model with room for 10¹⁴ tokens, asked for all of them: no machine has such addresses."""
    model = tmp_path / "model"
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**(GROUPED_HEADS | {"max_position_embeddings": 10**15}))).save_pretrained(model)
    byte_tokenizer().save_pretrained(model)
    config = tiny_config(model, write_data(tmp_path), steps=2, eval_every=0)
    run = start_run(config, tmp_path / "runs", build_method, view=Silent())
    train(run, Silent())
    run.config = run.config.model_copy(update={"steps": 3, "max_new_tokens": 10**14})
    run.method = replace(run.method, rollout=replace(run.method.rollout, max_new_tokens=10**14))
    with pytest.raises(
        UserError, match=r"out of memory; earlier checkpoints are intact. Lower microbatch_tokens"
    ) as raised:
        train(run, Silent())
    assert "max_new_tokens (100000000000000)" in str(raised.value)
    assert "model.activation_checkpointing=true" in str(raised.value)
    saved = checkpoints(run.folder.checkpoints)[-1]
    assert load_checkpoint(saved, run.policy, base=run.origin.base, places={}).step == 2
    run.close()


def test_the_advice_names_what_would_save_memory_and_is_not_set(tmp_path: Path, tiny_folder: Path) -> None:
    def advice(error: str = "out of memory", **changes: Any) -> str:
        config = tiny_config(tiny_folder, write_data(tmp_path), **changes)
        with pytest.raises(UserError) as raised, explained_memory(config):
            raise torch.OutOfMemoryError(error)
        return str(raised.value)

    name = str(tiny_folder)
    plain = advice(model={"name": name, "device": "cuda:0"})
    assert plain.endswith(
        "or set model.activation_checkpointing=true or model.lora={} or model.weights=bfloat16 or "
        "optimizer.kind=adamw_8bit or optimizer.offload=true"
    )
    assert "cache_gb" not in plain
    small = {"kind": "adamw_8bit", "offload": True}
    narrow = {"name": name, "device": "cuda:0", "weights": "bfloat16"}
    assert advice(model=narrow, optimizer=small).endswith("or set model.activation_checkpointing=true or model.lora={}")
    adapted = {"name": name, "device": "cpu", "lora": {}, "activation_checkpointing": True}
    assert " or set " not in advice(model=adapted)  # its moments are small
    assert "optimizer.offload" not in advice(model={"name": name, "device": "cpu"})
    cache = "CUDA out of memory: 4.0 GiB for the sampler's cache"
    assert "Lower model.cache_gb (now 4), microbatch_tokens" in advice(cache, model={"name": name, "cache_gb": 4})


def test_moments_are_counted_as_the_optimizer_keeps_them() -> None:
    policy = tiny_policy()
    policy.causal.lm_head.weight = nn.Parameter(torch.empty(2**26, 2, device="meta"))
    policy.model.requires_grad_(False)
    policy.causal.lm_head.requires_grad_(True)
    assert _moment_bytes(policy, OptimizerConfig()) == 8 * 2**27
    assert _moment_bytes(policy, OptimizerConfig(kind="adamw_8bit")) == 2 * 2**27 + 8 * 2**19
    assert _moment_bytes(policy, OptimizerConfig(offload=True)) == 3 * 8 * CHUNK  # three parts at a time, in an update
