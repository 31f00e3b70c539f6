"""`--judge`: the same as a recipe's `reward.judge`, written on the command line or taken from a file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from vigneron.config.judges import JudgeConfig
from vigneron.config.values import Strict
from vigneron.errors import UserError, visible
from vigneron.files import user_path
from vigneron.recipe import config_text, load_config, parse_yaml, recipe_text
from vigneron.validation import faults

EXAMPLE = "--judge '{kind: endpoint, model: gpt-4o-mini}'"


class _Given(Strict):
    judge: JudgeConfig


def judge_of(given: str) -> JudgeConfig:
    """YAML or JSON as it stands, or else the name of a recipe or a file: a recipe, a run's config, or a judge alone."""
    said = parse_yaml(given, "--judge")
    if isinstance(said, Mapping):
        return _checked(said, "--judge")
    if not isinstance(said, str):
        raise UserError(f"--judge: a mapping, or the name of a recipe or a file, not {given!r}: as in {EXAMPLE}")
    held = parse_yaml(_text(said), said)
    if isinstance(held, Mapping) and "kind" in held and "reward" not in held:
        return _checked(held, said)
    reward = load_config(said).reward
    judge = getattr(reward, "judge", None)
    if judge is None:
        raise UserError(f"--judge: '{said}' names no judge under `reward.judge`")
    return judge


def _text(name: str) -> str:
    if Path(name).suffix != ".json":
        return recipe_text(name)
    return config_text(user_path(name), f"'{name}'", "--judge: ")


def _checked(given: Mapping[str, Any], where: str) -> JudgeConfig:
    whole = {"judge": dict(given)}
    try:
        return _Given.model_validate(whole).judge
    except ValidationError as errors:
        found = faults(errors.errors(), whole, _Given, "the judge")
        raise UserError("\n".join(f"{where}: {visible(fault.line)}" for fault in found)) from errors
