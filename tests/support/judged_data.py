"""Preference pairs and scored texts, and configs that train on them."""

import json
from itertools import product
from pathlib import Path
from typing import Any

from support.tiny_runs import tiny_recipe
from vigneron.recipe import check_config

WORDS = ("hot", "big", "up", "wet", "rich", "cold", "low", "dry")


def write_pairs(folder: Path) -> Path:
    """Who ends in `!` is preferred; other words in the held-out part."""
    path = folder / "pairs.jsonl"
    for file, prompt in ((path, "say {}:"), (folder / "held-out-pairs.jsonl", "to {}:")):
        rows = [{"prompt": prompt.format(w), "chosen": f" {w}!", "rejected": f" {w}?"} for w in WORDS]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def pairs_config(folder: Path, base: Path, name: str, **changes: Any) -> Any:
    recipe = {
        "recipe": "tiny",
        "method": {"name": name},
        "model": {"name": str(base), "device": "cpu"},
        "data": {"train": str(write_pairs(folder)), "held_out": str(folder / "held-out-pairs.jsonl")},
        "optimizer": {"actor_lr": 1e-2, "schedule": "cosine"},
        "steps": 8,
        "prompts_per_step": 4,
        "eval_every": 4,
        "save_every": 4,
    }
    return check_config(recipe | changes, "tiny")


def score_rows(prompt: str) -> list[dict[str, Any]]:
    """People like what ends in a full stop."""
    return [
        {"prompt": prompt.format(word), "completion": f" {word}{end}", "score": score}
        for word in WORDS
        for end, score in ((".", 1.0), ("!", 0.0))
    ]


def score_config(tmp_path: Path, model: Path, train: list[dict[str, Any]], **changes: Any) -> Any:
    paths = [tmp_path / name for name in ("train.jsonl", "held-out.jsonl")]
    for path, some in zip(paths, (train, score_rows("name {}:")), strict=True):
        path.write_text("".join(json.dumps(row) + "\n" for row in some))
    given = tiny_recipe(
        model,
        paths[0],
        method={"name": "score_model"},
        optimizer={"actor_lr": 3e-3},
        steps=40,
        prompts_per_step=16,
        eval_every=20,
        save_every=0,
        **changes,
    )
    given["data"] = {"train": str(paths[0]), "held_out": str(paths[1])}
    for key in ("reward", "group_size", "max_new_tokens"):
        given.pop(key)
    return check_config(given, "tiny")


def step_rows(prompt: str) -> list[dict[str, Any]]:
    """A step is right where it ends in a full stop; one in three solutions has an unclear step."""
    rows = []
    for number, (word, ends) in enumerate(product(WORDS, ("..", ".!", "!.", "!!"))):
        labels: list[Any] = [end == "." for end in ends]
        if number % 3 == 2:
            labels[0] = None
        text = "\n".join(word + end for end in ends)
        rows.append({"prompt": prompt.format(word), "completion": text, "labels": labels})
    return rows


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def process_config(folder: Path, model: Path, method: dict[str, Any] | None = None, **changes: Any) -> Any:
    train = changes.pop("rows", step_rows("say {}:"))
    data = {"train": str(write_rows(folder / "steps.jsonl", train))}
    if changes.pop("held_out", True):
        data["held_out"] = str(write_rows(folder / "held-out-steps.jsonl", step_rows("name {}:")))
    given = {
        "recipe": "tiny",
        "method": {"name": "process_model", **(method or {})},
        "model": {"name": str(model), "device": "cpu"},
        "data": data,
        "optimizer": {"actor_lr": 3e-3, "schedule": "cosine"},
        "steps": 8,
        "prompts_per_step": 4,
        "eval_every": 4,
        "save_every": 4,
    }
    return check_config(given | changes, "tiny")
