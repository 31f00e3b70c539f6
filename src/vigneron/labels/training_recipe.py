"""The recipe that trains on labelled rows, and the command that runs it."""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path

from vigneron.files import write_for_user
from vigneron.labels.items import Kind

METHODS: dict[Kind, str] = {"pairs": "dpo", "best": "sft", "steps": "process_model"}
OTHERS = {"pairs": "or reward_model, preference_model"}
PASSES, PROMPTS_PER_STEP = 3, 16
MODEL = "smollm2-135m"


def recipe_file(out: Path, kind: Kind) -> Path:
    """As `pairs-dpo.yaml` beside `pairs.jsonl`."""
    return out.with_name(f"{out.stem}-{METHODS[kind]}.yaml")


def recipe_text(out: Path, kind: Kind, model: str | None, separator: str | None = None) -> str:
    """`model`: the run or model whose completions were labelled; None if they are from a file."""
    options = {"name": METHODS[kind], **({} if separator is None else {"separator": separator})}
    lines = [
        f"# Trains on the labels in {out.name}. Written by `vigneron label`; edit it as you like.",
        _line("method", options, OTHERS.get(kind)),
        _line("model", {"name": model or MODEL}, "the model to train" if model is None else None),
        _line("data", {"train": out.as_posix()}, "and held_out: labels to evaluate on"),
        _line("optimizer", {"actor_lr": 1e-6 if kind == "pairs" else 1e-5}),
        "eval_every: 0",
    ]
    return "\n".join(lines) + "\n"


def _line(key: str, values: Mapping[str, object], comment: str | None = None) -> str:
    inner = ", ".join(f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in values.items())
    return f"{key}: {{{inner}}}" + (f"  # {comment}" if comment else "")


def training_command(recipe: Path, text: str, rows: int) -> str:
    """About three passes over the rows. Writes the recipe, unless the file exists: it may have been edited."""
    if not recipe.exists():
        write_for_user(recipe, text)
    prompts = min(PROMPTS_PER_STEP, rows)
    changes = [f"steps={-(-PASSES * rows // prompts)}", f"prompts_per_step={prompts}"]
    return shlex.join(["vigneron", "train", str(recipe), *changes])
