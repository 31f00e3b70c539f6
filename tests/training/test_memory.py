"""Out of memory: the setting to change is named, and earlier checkpoints are intact."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from support.tiny_models import GROUPED_HEADS, byte_tokenizer
from support.tiny_runs import tiny_config, write_data
from vigneron.errors import UserError
from vigneron.methods import build_method
from vigneron.training.callbacks import Silent
from vigneron.training.checkpoint.read import checkpoints, load_checkpoint
from vigneron.training.loop import train
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
