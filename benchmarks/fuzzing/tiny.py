"""A tiny model and runs of it to damage, created once, in seconds."""

import json
from pathlib import Path
from typing import Any

from vigneron.recipe import check_config

WORDS = ("hot", "cold", "big", "small", "wet", "dry")


def save_tiny_model(folder: Path, positions: int = 64) -> None:
    """A Llama of two layers with random weights, and a tokenizer of single bytes."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

    vocabulary = {"<end>": 0, **{c: i + 1 for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}}
    tokenizer: Any = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>")
    fast.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}answer: "
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=260,
        max_position_embeddings=positions,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    fast.save_pretrained(folder)


def write_rows(folder: Path) -> tuple[Path, Path]:
    made = []
    for name, prompt in (("train", "say {}: "), ("held_out", "name {}: ")):
        path = folder / f"{name}.jsonl"
        rows = [{"prompt": prompt.format(word), "answer": word} for word in WORDS]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        made.append(path)
    return made[0], made[1]


def tiny_recipes(model: Path, data: Path) -> dict[str, dict[str, Any]]:
    """Methods by the content of their checkpoints: a critic and a KL controller, or an adapter."""
    train, held_out = write_rows(data)
    shared: dict[str, Any] = {
        "data": {"train": str(train), "held_out": str(held_out)},
        "reward": {"kind": "binary"},
        "steps": 2,
        "prompts_per_step": 2,
        "group_size": 2,
        "max_new_tokens": 3,
        "eval_every": 1,
        "save_every": 1,
    }
    at: dict[str, Any] = {"name": str(model), "device": "cpu"}
    kl = {"coefficient": 1e-3, "adaptive": {"target": 0.01}}
    return {
        "critic": {**shared, "model": at, "method": {"name": "actor_critic", "kl": kl}},
        "adapter": {**shared, "model": {**at, "lora": {"rank": 2}}, "method": {"name": "grpo"}},
    }


def make_runs(place: Path) -> list[Path]:
    """Finished runs with two checkpoints each, samples, rows and metrics."""
    from vigneron import api

    model = place / "model"
    save_tiny_model(model)
    found = []
    for name, recipe in tiny_recipes(model, place).items():
        found.append(api.train(check_config(recipe, name), name=name, runs=place / "runs").folder)
    return found
