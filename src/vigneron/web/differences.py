"""In which keys of their configs runs differ. Pure, but for reading the files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from vigneron.errors import UserError
from vigneron.recipe import config_text
from vigneron.yaml_text import quick_yaml

ABSENT = "–"


def differences(configs: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of a table: the key, and each run's value as text."""
    flat = {run: flattened(config) for run, config in configs.items()}
    keys = dict.fromkeys(key for config in flat.values() for key in config)
    rows = [{"key": key, "values": [config.get(key, ABSENT) for config in flat.values()]} for key in keys]
    return [row for row in rows if len(set(row["values"])) > 1]


def flattened(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """`optimizer.actor_lr` and its like; an empty section is a value too."""
    flat: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            flat |= flattened(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = _text(value)
    return flat


def _text(value: Any) -> str:
    """As it stands in the file: `true`, `null`."""
    if isinstance(value, str):
        return value
    return str(yaml.safe_dump(value, default_flow_style=True, width=10**9)).removesuffix("\n...\n").strip()


def written_config(folder: Path) -> str:
    return config_text(folder / "config.yaml", f"{folder.name}/config.yaml")


def read_config(folder: Path) -> Mapping[str, Any]:
    config = quick_yaml(written_config(folder), f"{folder.name}/config.yaml")
    if not isinstance(config, dict):
        raise UserError(f"{folder.name}: its config.yaml holds no keys")
    return config
