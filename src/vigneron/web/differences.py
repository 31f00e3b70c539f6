"""In which keys of their configs runs differ. Pure, but for reading the files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from vigneron.errors import UserError
from vigneron.folder.status import SAFE_LOADER

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


def config_text(folder: Path) -> str:
    return (folder / "config.yaml").read_text(encoding="utf-8", errors="replace")


def read_config(folder: Path) -> Mapping[str, Any]:
    try:
        config = yaml.load(config_text(folder), Loader=SAFE_LOADER)
    except yaml.YAMLError as error:
        raise UserError(f"{folder.name}: its config.yaml is not valid YAML") from error
    if not isinstance(config, dict):
        raise UserError(f"{folder.name}: its config.yaml holds no keys")
    return config
