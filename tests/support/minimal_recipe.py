"""A smallest recipe, changed by keyword, and the lines it is refused with."""

from typing import Any

import pytest

from vigneron.config import Config
from vigneron.errors import UserError
from vigneron.recipe import check_config, config_yaml, parse_yaml

MINIMAL: dict[str, Any] = {
    "method": {"name": "actor_critic"},
    "data": {"task": "antonyms"},
    "reward": {"kind": "binary"},
}


def check(**changes: Any) -> Config:
    return check_config({**MINIMAL, **changes}, "my.yaml")


def lines_of(**changes: Any) -> list[str]:
    with pytest.raises(UserError) as caught:
        check(**changes)
    return str(caught.value).splitlines()


def line_of(**changes: Any) -> str:
    (line,) = lines_of(**changes)
    return line


def method(**keys: Any) -> dict[str, Any]:
    return {"name": "actor_critic", **keys}


def again(config: Config) -> Config:
    """Written into a run's folder, and read again."""
    return check_config(parse_yaml(config_yaml(config), "config.yaml"), "config.yaml")
