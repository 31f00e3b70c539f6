"""Tiny runs of GRAPE: a rubric, a recipe, and functions that score and judge."""

from pathlib import Path
from typing import Any

import yaml

from support.tiny_runs import tiny_recipe, write_data

FUNCTIONS = """
def vowels(prompts, completions, **columns):
    return [sum(c in "aeiouAEIOU" for c in text) / 4 for text in completions]

def judge(messages):
    import json
    said = messages[-1]["content"]
    if "critique" not in said.lower() or "Reply" not in said and "yes" not in said:
        return "It could have more vowels."
    return json.dumps({"reasoning": "counted", "score": (said.count("a") % 5) / 4, "confidence": 0.8})
"""


def item(name: str, **keys: Any) -> dict[str, Any]:
    return {"name": name, "description": "what it says", **keys}


VOWELS = item("vowels", flow="python", function="grape_functions:vowels")


def write_rubric(folder: Path, *items: dict[str, Any], name: str = "rubric.yaml", **keys: Any) -> str:
    path = folder / name
    path.write_text(yaml.safe_dump({"category_column": None, "categories": {"words": {"items": list(items), **keys}}}))
    return str(path)


def recipe(tmp_path: Path, model: Path, rubric: str, **changes: Any) -> dict[str, Any]:
    options: dict[str, Any] = {
        "method": {"name": "grape", "kl": {"coefficient": 0.0}},
        "reward": {"kind": "rubric", "file": rubric},
        "optimizer": {"actor_lr": 1e-2},
        "group_size": 4,
        "eval_every": 0,
        "save_every": 0,
    }
    return tiny_recipe(model, write_data(tmp_path), **{**options, **changes})
