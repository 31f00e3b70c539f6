"""Memory plans of a tiny Llama: its recipe, and a folder that has its config and no weights."""

from pathlib import Path
from typing import Any

from support.zoo import zoo_config
from vigneron.config import Config
from vigneron.recipe import check_config


def config_of(folder: Path, **changes: Any) -> Config:
    given: dict[str, Any] = {
        "method": {"name": "grpo"},
        "data": {"task": "antonyms"},
        "reward": {"kind": "binary"},
        "prompts_per_step": 3,
        "group_size": 4,
        "max_new_tokens": 12,
        "microbatch_tokens": 64,
        "steps": 2,
        **changes,
    }
    given["model"] = {"name": str(folder), **given.get("model", {})}
    return check_config({key: value for key, value in given.items() if value is not None}, "tiny")


def weightless_llama(folder: Path) -> Path:
    """The folder, with the config of a tiny Llama and no weights."""
    zoo_config("Llama").save_pretrained(folder)
    return folder
