"""A tiny GRAPE run whose judge is an endpoint."""

from pathlib import Path
from typing import Any

import yaml

from support.tiny_runs import tiny_recipe, write_data

RUBRIC = {
    "category_column": None,
    "categories": {
        "words": {
            "items": [
                {"name": "kind", "description": "It is kind.", "flow": "judge", "critique": "You are a critic."},
                {"name": "short", "description": "It is short.", "flow": "length", "at_most": 2},
            ]
        }
    },
}


def recipe_file(tmp_path: Path, model: Path, url: str, timeout_s: float = 300.0, **changes: Any) -> Path:
    rubric = tmp_path / "rubric.yaml"
    rubric.write_text(yaml.safe_dump(RUBRIC))
    judge = {"kind": "endpoint", "model": "grape", "url": url, "retries": 1, "timeout_s": timeout_s, "concurrency": 4}
    options: dict[str, Any] = {
        "method": {"name": "grape", "kl": {"coefficient": 0.0}, "mix": {"fresh": 1.0, "revised": 0.0}},
        "reward": {"kind": "rubric", "file": str(rubric), "judge": judge},
        "optimizer": {"actor_lr": 1e-3},
        "steps": 6,
        "save_every": 2,
        "eval_every": 0,
        **changes,
    }
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(tiny_recipe(model, write_data(tmp_path), **options)))
    return path
