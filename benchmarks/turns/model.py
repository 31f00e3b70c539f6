"""The model that calls: SmolLM2-135M with Qwen2.5's chat template, after a short SFT of ours on conversations.

The template's marks of calls are plain text for SmolLM2's tokenizer, so no token is added.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, PreTrainedTokenizerFast

from benchmarks.turns.work import WORKS, TurnsWork, conversations
from vigneron.api import train
from vigneron.commands.export import export
from vigneron.policy.bundled import SMOLLM2, bundled_model_folder, cache_folder
from vigneron.recipe import check_config


def folder_of(work: TurnsWork) -> Path:
    return cache_folder() / f"benchmark-{work.name}"


def chat_template() -> str:
    """Qwen2.5's, exactly as TRL has it: TRL's parser of calls knows a template by its text."""
    found = find_spec("trl")
    if found is None or found.origin is None:
        raise SystemExit("trl is not installed: run `make bench-setup`")
    return (Path(found.origin).parent / "chat_templates" / "qwen2_5.jinja").read_text(encoding="utf-8")


def make_model(work: TurnsWork, target: Path) -> None:
    """Fine-tune the model and write it to a folder that does not exist."""
    with tempfile.TemporaryDirectory() as place:
        base, data = Path(place) / "base", Path(place) / "conversations.jsonl"
        _save_base(work, base)
        data.write_text("".join(json.dumps(row) + "\n" for row in conversations(work)))
        began = time.perf_counter()
        trained = train(check_config(recipe(work, base, data), f"{work.name}-sft"), runs=place)
        print(f"SFT: {work.tuning.steps} steps in {time.perf_counter() - began:.1f} s", file=sys.stderr)
        export(trained.folder, target)
    if AutoTokenizer.from_pretrained(target).chat_template != chat_template():
        raise SystemExit("the chat template was changed when the model was saved: TRL would not know it")


def recipe(work: TurnsWork, base: Path, data: Path) -> dict[str, Any]:
    tuning = work.tuning
    return {
        "recipe": f"{work.name}-sft",
        "method": {"name": "sft"},
        "model": {"name": str(base), "device": work.step.device, "dtype": work.step.dtype, "compile": False},
        "data": {"train": str(data)},
        "optimizer": {"actor_lr": tuning.learning_rate, "schedule": "linear", "warmup_steps": tuning.steps // 10},
        "steps": tuning.steps,
        "prompts_per_step": tuning.rows,
        "max_new_tokens": work.step.new_tokens,
        "eval_every": 0,
        "save_every": 0,
    }


def _save_base(work: TurnsWork, target: Path) -> None:
    """Before the SFT: SmolLM2-135M, or a model of no size with a tokenizer of few tokens."""
    if work.step.model == SMOLLM2:
        source = bundled_model_folder(SMOLLM2)
        shutil.copytree(source, target)
        tokenizer = AutoTokenizer.from_pretrained(source)
    else:
        tokenizer = _small_tokenizer(work)
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=2048,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            tie_word_embeddings=True,
        )
        AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(target)
    tokenizer.chat_template = chat_template()
    tokenizer.save_pretrained(target)


def _small_tokenizer(work: TurnsWork) -> Any:
    """Byte-level BPE, learnt from the conversations, with the template's special tokens."""
    learnt = Tokenizer(models.BPE())
    learnt.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    learnt.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=640,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    learnt.train_from_iterator([chat_template(), json.dumps(conversations(work)[:8])], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=learnt, eos_token="<|im_end|>", pad_token="<|im_end|>")


if __name__ == "__main__":
    # In a process of its own: what it had on the GPU is free again when it ends.
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", required=True, choices=WORKS)
    given = parser.parse_args()
    make_model(WORKS[given.work], folder_of(WORKS[given.work]))
