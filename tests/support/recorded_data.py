"""Recorded samples with rewards, and configs that train on them."""

import json
from pathlib import Path
from typing import Any

import torch

from support.tiny_runs import tiny_config, write_data
from vigneron.config import Config
from vigneron.recipe import check_config

WORDS = ("hot", "big", "up", "wet", "rich", "cold", "low", "dry")


def recorded_rows(**columns: Any) -> list[dict[str, Any]]:
    """Of each word a good sample, which ends in a full stop, and a bad one."""
    return [
        {"prompt": f"say {word}:", "completion": f" {word}{end}", "answer": f"{word}.", "reward": reward, **columns}
        for word in WORDS
        for end, reward in ((".", 1.0), ("!", 0.0))
    ]


def recorded_config(place: Path, model: Path, method: dict[str, Any], rows: Any = None, **changes: Any) -> Config:
    train, held_out = place / "recorded.jsonl", place / "held-out.jsonl"
    questions = [{"prompt": f"name {word}:", "answer": f"{word}."} for word in WORDS]
    for path, some in ((train, recorded_rows() if rows is None else rows), (held_out, questions)):
        path.write_text("".join(json.dumps(row) + "\n" for row in some))
    recipe = {
        "recipe": "tiny",
        "method": method,
        "model": {"name": str(model), "device": "cpu"},
        "data": {"train": str(train), "held_out": str(held_out)},
        "optimizer": {"actor_lr": 1e-2, "schedule": "cosine"},
        "steps": 8,
        "prompts_per_step": 4,
        "max_new_tokens": 6,
        "eval_every": 4,
        "save_every": 4,
    }
    return check_config(recipe | changes, "tiny")


HEAD = {"name": "oreo", "critic": {"network": "head"}}
REWARD = {"kind": "python", "function": "support.recorded_data:has_vowel"}
A_STAR = {"name": "a_star_po", "reference_samples": 4, "beta": 0.05}


def has_vowel(completions: list[str], **columns: Any) -> list[float]:
    """From the random generator of torch too: its state must not depend on when the reference was sampled."""
    return [float(any(c in "aeiouAEIOU" for c in text)) + 1e-3 * float(torch.rand(())) for text in completions]


def a_star_config(place: Path, model: Path, **changes: Any) -> Config:
    common: dict[str, Any] = {"method": A_STAR, "reward": REWARD, "optimizer": {"actor_lr": 1e-3}, "group_size": 1}
    return tiny_config(model, write_data(place), **common | {"steps": 8, "eval_every": 4} | changes)


def missing(completions: list[str], **columns: Any) -> list[None]:
    return [None] * len(completions)
