"""Read recipes (YAML with overrides), validate them, and write resolved configs.

Does not import torch: an invalid recipe is refused before anything heavy is loaded.
"""

from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from vigneron.config import USER_CODE, Config, MethodConfig
from vigneron.config.keys import is_text, kind_of, models_in
from vigneron.config.values import STORED
from vigneron.errors import UserError, did_you_mean, visible
from vigneron.files import default_runs_folder, read_regular, user_path
from vigneron.validation import field_errors
from vigneron.yaml_text import LARGEST_FILE, Dumper, parse_yaml

SHORT = {"reward": "kind", "method": "name", "model": "name"}
"""Sections that may be given by one name: `reward: binary` means `reward: {kind: binary}`."""


BRACKETS = {"{": "}", "[": "]"}
"""What a list or a mapping in an override begins and ends with."""


def recipe_names() -> list[str]:
    folder = resources.files("vigneron") / "recipes"
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def recipe_text(name: str) -> str:
    """The YAML of a built-in recipe or of a .yaml file."""
    if name in recipe_names():
        return (resources.files("vigneron") / "recipes" / f"{name}.yaml").read_text(encoding="utf-8")
    path = user_path(name)
    if path.suffix in (".yaml", ".yml"):
        return config_text(path, f"the recipe '{name}'")
    if name in (str(kind_of(model)) for model in models_in(MethodConfig)):
        raise UserError(
            f"'{name}' is a method, not a recipe: write a .yaml file with `method: {{name: {name}}}` and `data` "
            f"(`vigneron methods {name}` lists its keys), or start from one of `vigneron recipes`"
        )
    for run in (path, default_runs_folder() / path):
        if (run / "config.yaml").is_file():
            raise UserError(
                f"'{name}' is a run, not a recipe: give '{run / 'config.yaml'}', and model.name={name} for its weights"
            )
    known = did_you_mean(name, recipe_names(), "`vigneron recipes` lists them")
    raise UserError(f"unknown recipe '{name}'{known}; or give the path of a .yaml file")


def config_text(path: Path, what: str, where: str = "") -> str:
    """The text of a settings file. Reads no more than the size limit, and only from a regular file."""
    try:
        content = read_regular(path, 4 * LARGEST_FILE + 1)  # a character has at most 4 bytes
        if len(content) > 4 * LARGEST_FILE:
            raise UserError(f"{where}cannot read {what}: larger than {LARGEST_FILE:,} characters")
        return content.decode("utf-8-sig")
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or an invalid path
        why = getattr(error, "strerror", None) or "not UTF-8 text"
        raise UserError(f"{where}cannot read {what}: {why}") from error


def load_config(recipe: str, overrides: Sequence[str] = (), keys: Mapping[str, Any] | None = None) -> Config:
    """Load and validate a recipe by name or file, with `key=value` overrides and top-level `keys`."""
    given = _with_base(recipe)
    for override in overrides:
        given = with_override(given, override)
    given = {**given, **(keys or {})}
    return check_config({"recipe": visible(Path(recipe).stem), **given}, recipe)


def changed_config(config: Config, overrides: Sequence[str], where: str) -> Config:
    """Apply `key=value` overrides to a run's config and validate it: as strictly as it can be read itself."""
    given = config.model_dump(mode="json")
    stored = not _is_valid(given)
    for override in sorted(overrides, key=lambda text: not _names_kind(text)):
        given = with_override(_without_old_kind(given, override), override)
    return check_config(given, where, stored=stored)


def _is_valid(given: Mapping[str, Any]) -> bool:
    try:
        check_config(given, "")
    except UserError:
        return False
    return True


def _with_base(recipe: str, derived: tuple[str, ...] = ()) -> dict[str, Any]:
    """A recipe's top-level keys, with missing ones taken from its `base` (another recipe)."""
    if _same(recipe) in map(_same, derived):
        raise UserError(f"{recipe}: circular `base`: {' → '.join((*derived, recipe))}")
    given = parse_yaml(recipe_text(recipe), recipe)
    if not isinstance(given, dict):
        raise UserError(f"{recipe}: a recipe must be a mapping of keys to values")
    base = given.pop("base", None)
    if base is None:
        return given
    if not isinstance(base, str):
        raise UserError(f"{recipe}: base: expected the name of a recipe or a .yaml file, not {base!r}")
    beside = Path(recipe).parent / user_path(base)
    inherited = _with_base(str(beside) if beside.suffix and beside.is_file() else base, (*derived, recipe))
    return {key: value for key, value in inherited.items() if key not in ("recipe", "about")} | given


def _same(recipe: str) -> str:
    """A recipe's name, or the resolved path of its file."""
    return recipe if recipe in recipe_names() else str(user_path(recipe).resolve())


def with_override(given: Mapping[str, Any], override: str) -> dict[str, Any]:
    """A copy of nested mappings with `a.b=value` set."""
    key, separator, value = override.partition("=")
    path = key.strip().split(".")
    if not separator or not all(path):
        raise UserError(f"'{override}' is not of the form key=value")
    return _set(given, path, _parsed_value(path, value, override))


def _parsed_value(path: Sequence[str], value: str, override: str) -> Any:
    """The value as YAML. Of a key that takes text only, and where it is no YAML list or mapping in brackets, the value
    is text as it stands: `data.template=Copy this: {x}`."""
    text = value.strip()
    if is_text(Config, path) and text not in ("", "null", "~") and not _is_quoted(text):
        return value
    bracketed = BRACKETS.get(text[:1]) == text[-1:]
    try:
        parsed = parse_yaml(value, override)
    except UserError:
        if bracketed or _is_quoted(text):
            raise
        return value
    return value if isinstance(parsed, dict | list) and not bracketed else parsed


def _is_quoted(text: str) -> bool:
    return len(text) > 1 and text[0] in "\"'" and text[-1] == text[0]


def _set(mapping: Any, path: Sequence[str], value: Any) -> dict[str, Any]:
    mapping = dict(mapping) if isinstance(mapping, Mapping) else {}
    head, *rest = path
    mapping[head] = _set(_spelled_out(head, mapping.get(head)), rest, value) if rest else value
    return mapping


def _names_kind(override: str) -> bool:
    """Whether it sets a `kind` by which a section has other keys. An optimizer's has the same ones."""
    key = override.partition("=")[0].strip()
    return key.endswith(".kind") and key != "optimizer.kind"


def _without_old_kind(given: dict[str, Any], override: str) -> dict[str, Any]:
    """Drop a section's keys when its kind changes: a resolved config has defaults that the new kind may not accept."""
    key, _, value = override.partition("=")
    *path, last = key.strip().split(".")
    now: Any = given
    for part in path:
        now = now.get(part) if isinstance(now, Mapping) else None
    changes = _names_kind(override) and isinstance(now, Mapping) and now.get(last) != value.strip()
    return _set(given, path, {}) if changes else given


def _spelled_out(key: str, value: Any) -> Any:
    """Expand `reward: binary` to `reward: {kind: binary}` (see SHORT)."""
    return {SHORT[key]: value} if key in SHORT and isinstance(value, str) else value


def check_config(given: Mapping[str, Any], where: str, *, user_code: bool = True, stored: bool = False) -> Config:
    """Validate a config. All errors are reported together, one line each, with the key's path.

    `user_code`: whether a user's method, rollout or curriculum may be imported to check its options. `stored`: it is of
    a run's folder, and may be one that only earlier versions accepted.
    """
    if isinstance(given, Mapping):
        given = {key: _spelled_out(key, value) for key, value in given.items()}
    try:
        return Config.model_validate(given, context={USER_CODE: user_code, STORED: stored})
    except ValidationError as errors:
        faults = field_errors(errors.errors(), given, Config, "the recipe")
        raise UserError("\n".join(f"{where}: {visible(fault.line)}" for fault in faults)) from errors


def config_yaml(config: Config) -> str:
    """The resolved config as YAML, as written to the run's folder."""
    return yaml.dump(config.model_dump(mode="json"), Dumper=Dumper, sort_keys=False, allow_unicode=True)
