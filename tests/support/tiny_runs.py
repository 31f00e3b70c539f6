"""Small runs on a tiny model, in this process or in one of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from support import importing_support
from vigneron.config import Config
from vigneron.recipe import check_config

WORDS = ("hot", "cold", "big", "small", "up", "down", "wet", "dry", "rich", "poor")


def write_data(folder: Path) -> Path:
    """Rows to train on, and beside them others that are held out."""
    path = folder / "words.jsonl"
    for file, prompt in ((path, "say {}: "), (held_out_of(path), "name {}: ")):
        rows = [{"prompt": prompt.format(word), "answer": word} for word in WORDS]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def held_out_of(data: Path) -> Path:
    return data.with_name(f"held-out-{data.name}")


def tiny_recipe(folder: Path, data: Path, **changes: Any) -> dict[str, Any]:
    recipe: dict[str, Any] = {
        "recipe": "tiny",
        "method": {"name": "actor_critic", "kl": {"coefficient": 1e-3, "adaptive": {"target": 0.01}}},
        "model": {"name": str(folder), "device": "cpu"},
        "data": {"train": str(data), "held_out": str(held_out_of(data)) if held_out_of(data).exists() else None},
        "reward": {"kind": "semantic", "embedder": "wordllama", "form": "shift", "clean": "none"},
        "optimizer": {"actor_lr": 1e-3, "critic_lr": 1e-2, "schedule": "cosine", "warmup_steps": 2},
        "steps": 12,
        "prompts_per_step": 4,
        "group_size": 2,
        "max_new_tokens": 4,
        "eval_every": 5,
        "save_every": 4,
    }
    return recipe | changes


def demonstrated_config(place: Path, folder: Path, rows: list[dict[str, Any]], **changes: Any) -> Config:
    """A run on these texts, which are trained on and held out."""
    for name in ("train", "held-out"):
        (place / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe: dict[str, Any] = {
        "recipe": "tiny",
        "model": {"name": str(folder), "device": "cpu"},
        "data": {"train": str(place / "train.jsonl"), "held_out": str(place / "held-out.jsonl")},
        "optimizer": {"actor_lr": 1e-2},
        "steps": 8,
        "prompts_per_step": 4,
        "eval_every": 4,
        "save_every": 4,
    }
    return check_config(recipe | changes, "tiny")


def tiny_config(folder: Path, data: Path, **changes: Any) -> Config:
    return check_config(tiny_recipe(folder, data, **changes), "tiny")


def run_python(code: str, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """A process of its own, so that it may be killed; it can import `support`, as the tests can."""
    command, environment = [sys.executable, "-c", code, *arguments], {**os.environ, **importing_support()}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=check, timeout=900)


def final_state(folder: Path) -> dict[str, bytes]:
    """Every byte that must not depend on whether the run was interrupted.

    Python's own generator is left out: the run-time type checker of these tests draws from it.
    """
    last = max((folder / "checkpoints").glob("step-*"), key=lambda p: int(p.name.removeprefix("step-")))
    names = ["state/tensors.safetensors", *(p.name for p in last.glob("*.safetensors"))]
    names += ["state/memory.jsonl"] if (last / "state" / "memory.jsonl").exists() else []
    scalars = json.loads((last / "state" / "scalars.json").read_text())
    del scalars["rng"]["python"]
    return {
        "metrics": (folder / "metrics.jsonl").read_bytes(),
        "scalars": json.dumps(scalars).encode(),
        **{name: (last / name).read_bytes() for name in names},
    }


class Listener:
    """A view that keeps the notices of a run."""

    def __init__(self) -> None:
        self.notices: list[str] = []

    def notice(self, text: str) -> None:
        self.notices.append(text)

    def step(self, *_: Any) -> None: ...
