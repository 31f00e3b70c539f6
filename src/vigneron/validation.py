"""Readable messages for pydantic's validation errors: one line per key, with its path and "did you mean".

Does not import torch: an invalid file is refused before anything heavy is loaded.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from vigneron.config.curricula import CurriculumOptions
from vigneron.config.custom import SlotOptions, is_user_path, options_class
from vigneron.config.options import MethodOptions
from vigneron.config.trl_names import METHODS_AS, trl_hint
from vigneron.config.values import Strict
from vigneron.errors import did_you_mean, nearest

Path = tuple[int | str, ...]
LONGEST_SHOWN = 80
MISSING = {"reward": ": what scores the samples of the method, as `reward: {kind: binary}`"}
"""What a missing key is for."""


@dataclass(frozen=True)
class FieldError:
    """An invalid value: its path (keys and list indices) and the message, which names the path too."""

    path: Path
    line: str


def format_path(path: Path) -> str:
    """A path as text, such as `categories.coding.items[2].weight`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def field_errors(errors: Sequence[ErrorDetails], given: Any, model: type[BaseModel], whole: str) -> list[FieldError]:
    """One error per key; a key of several types lists what each type expects. `whole`: the name for the file itself."""
    by_path: dict[Path, list[ErrorDetails]] = {}
    for error in errors:
        by_path.setdefault(_path_in(error, given, model), []).append(error)
    return [
        FieldError(_with_tag(path, of_key, given, model), line)
        for path, of_key in by_path.items()
        for line in _lines(of_key, path, given, model, whole)
    ]


def _with_tag(path: Path, of_key: Sequence[ErrorDetails], given: Any, model: type[BaseModel]) -> Path:
    """The path; for an unknown kind, with the key that names the kind."""
    unknown = any(error["type"] == "union_tag_invalid" for error in of_key)
    return (*path, _kinds_at(path, given, model)[0]) if unknown else path


def _lines(of_key: list[ErrorDetails], path: Path, given: Any, model: type[BaseModel], whole: str) -> list[str]:
    first, *others = [_describe(error, path, given, model, whole) for error in of_key]
    wanted = [re.sub("^.*?: |, not .*$", "", line) for line in others]
    if wanted and ", not " in first:
        before, _, shown = first.rpartition(", not ")
        return [f"{before}, or {', or '.join(wanted)}, not {shown}"]
    return [first, *others]


def _describe(error: ErrorDetails, path: Path, given: Any, model: type[BaseModel], whole: str) -> str:
    key = format_path(path) or whole
    if error["type"] == "extra_forbidden":
        known = _model_at(path[:-1], given, model).model_fields
        return f"unknown key '{key}'{trl_hint(path) or did_you_mean(str(path[-1]), list(known))}"
    if error["type"] == "missing":
        return f"'{key}' is missing" + MISSING.get(key, "")
    if error["type"] == "too_short":
        return f"{key}: should have at least {error['ctx']['min_length']} items, not {error['ctx']['actual_length']}"
    if error["type"] in ("union_tag_not_found", "union_tag_invalid", "model_attributes_type"):
        return _describe_kind(error["input"], key, *_kinds_at(path, given, model))
    message = error["msg"].removeprefix("Value error, ")
    message = re.sub("^(Input|String) should", "should", message)
    if error["type"] == "model_type":
        message = "should be a mapping of keys to values"
    if error["type"] == "value_error" or isinstance(error["input"], dict | list):
        return f"{key}: {message}"
    return f"{key}: {message}, not {shown_value(error['input'])}"


def _describe_kind(given: Any, key: str, tag: str, kinds: Mapping[str, Any]) -> str:
    """A section with several kinds is not a mapping, lacks its kind, or has an unknown one."""
    wanted = f"one of {', '.join(repr(kind) for kind in kinds)}"
    if any(issubclass(schema, MethodOptions) for schema in kinds.values()):
        wanted += ", or module:function"
    if any(issubclass(schema, CurriculumOptions) for schema in kinds.values()):
        wanted += ", or give `name: module:function` instead"
    if not isinstance(given, Mapping):
        return f"{key}: should be a mapping with '{tag}', {wanted}, not {shown_value(given)}"
    kind = given.get(tag)
    if kind is None:
        near = nearest(tag, [str(other) for other in given if other != tag])
        return f"'{key}.{tag}' is missing: {wanted}" + (f" (instead of '{near}'?)" if near else "")
    if key == "method" and str(kind) in METHODS_AS:
        return f"{key}.{tag}: {kind!r} is {METHODS_AS[str(kind)]}"
    near = nearest(str(kind), kinds)
    return f"{key}.{tag}: {wanted}, not {shown_value(kind)}" + (f" (did you mean '{near}'?)" if near else "")


def shown_value(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= LONGEST_SHOWN else f"{shown[: LONGEST_SHOWN - 1]}…"


def _path_in(error: ErrorDetails, given: Any, model: type[BaseModel]) -> Path:
    """Pydantic's location without the tags and types of unions, which are not keys of the file."""
    path: Path = ()
    here = given
    after_tag = False
    for place, part in enumerate(error["loc"]):
        if not after_tag and _kinds_at(path, given, model)[0]:
            after_tag = True
            continue
        missing = error["type"] == "missing" and place == len(error["loc"]) - 1
        if isinstance(here, Mapping) and (part in here or missing):
            here, part = here.get(part), str(part)
        elif isinstance(here, list) and isinstance(part, int):
            here = here[part]
        else:
            continue
        path, after_tag = (*path, part), False
    return path


def _model_at(path: Path, given: Any, model: type[BaseModel]) -> type[BaseModel]:
    """The schema of a section, for the kind that the file gives."""
    tag, kinds = _kinds_at(path, given, model)
    for part in path:
        given = _part_of(given, part)
    kind = given.get(tag) if isinstance(given, Mapping) else None
    return kinds.get(str(kind)) or next(iter(kinds.values()), model)


def _kinds_at(path: Path, given: Any, model: type[BaseModel]) -> tuple[str, dict[str, type[BaseModel]]]:
    """The discriminator key of a section ("" without one) and the schema of each kind."""
    tag, options = "", [model]
    for part in path:
        kind = given.get(tag) if isinstance(given, Mapping) else None
        of_kind = [option for option in options if not tag or kind in _tags(option, tag)]
        given = _part_of(given, part)
        tag, options = _inside((of_kind or options)[:1], part)
        options = _user_options(given, options)
    schemas = [option for option in options if isinstance(option, type) and issubclass(option, BaseModel)]
    return tag, {_tags(schema, tag)[0] if tag else "": schema for schema in schemas}


def _user_options(given: Any, options: list[Any]) -> list[Any]:
    """The options class of the user code that a section names, in place of the built-in ones."""
    name = given.get("name") if isinstance(given, Mapping) else None
    own = (MethodOptions, SlotOptions, CurriculumOptions)
    slot = any(isinstance(option, type) and issubclass(option, own) for option in options)
    return [options_class(name, Strict)] if slot and isinstance(name, str) and is_user_path(name) else options


def _tags(schema: Any, tag: str) -> tuple[Any, ...]:
    field = schema.model_fields.get(tag) if hasattr(schema, "model_fields") else None
    return (get_args(field.annotation) or ("",)) if field else ("",)


def _part_of(given: Any, part: int | str) -> Any:
    if isinstance(given, Mapping):
        return given.get(part)
    return given[part] if isinstance(given, list) and isinstance(part, int) and part < len(given) else None


def _inside(options: Sequence[Any], part: int | str) -> tuple[str, list[Any]]:
    """The discriminator and the types allowed under a key of a model or mapping, or in a list."""
    tag = ""
    inner: list[Any] = []
    for option in options:
        if isinstance(option, type) and issubclass(option, BaseModel):
            field = option.model_fields.get(str(part))
            if field is None:
                continue
            new_tag, types = _unfolded(field.annotation, str(field.discriminator or ""))
        elif get_args(option):  # list[X], tuple[X, ...] or dict[K, X]
            new_tag, types = _unfolded(get_args(option)[1 if get_origin(option) is dict else 0])
        else:
            continue
        tag, inner = new_tag or tag, inner + types
    return tag, inner


def _unfolded(annotation: Any, tag: str = "") -> tuple[str, list[Any]]:
    """The discriminator and the types of a union."""
    if get_origin(annotation) is Annotated:
        inner, *marks = get_args(annotation)
        named = [str(mark.discriminator) for mark in marks if getattr(mark, "discriminator", None)]
        return _unfolded(inner, next(iter(named), tag))
    if get_origin(annotation) in (Union, UnionType):
        types: list[Any] = []
        for option in get_args(annotation):
            new_tag, inside = _unfolded(option)
            tag, types = new_tag or tag, types + inside
        return tag, types
    return tag, [annotation]
