"""Read a rubric file, YAML or JSON: report all errors with their lines, normalise weights, compute the version.

Does not import torch, so that a broken file is refused quickly.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from importlib import resources
from importlib.resources.abc import Traversable
from json import dumps
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from vigneron.errors import UserError, did_you_mean
from vigneron.files import user_path
from vigneron.recipe import config_text
from vigneron.rubric.fences import one_line
from vigneron.rubric.model import AnyItem, Category, Rubric
from vigneron.rubric.templates import rubric_faults
from vigneron.rubric.yaml_positions import NON_STRINGS, ParsedFile, read_text
from vigneron.validation import FieldError, field_errors, format_path

SUFFIXES = (".yaml", ".yml", ".json")
TOLERANCE = 1e-6
MAX_ERRORS = 200

Checked = TypeVar("Checked", bound=BaseModel)


def example_names() -> list[str]:
    return sorted(entry.name.removesuffix(".yaml") for entry in _examples().iterdir() if entry.name.endswith(".yaml"))


def _examples() -> Traversable:
    return resources.files("vigneron") / "rubric" / "examples"


def rubric_text(path: str | Path) -> str:
    """The text of a bundled rubric, by its name, or of a file."""
    name = str(path)
    if name in example_names():
        return (_examples() / f"{name}.yaml").read_text(encoding="utf-8")
    file = user_path(path)
    if file.suffix not in SUFFIXES:
        known = did_you_mean(name, example_names())
        raise UserError(f"unknown rubric '{name}'{known}; give a bundled name, or a .yaml or .json file")
    return config_text(file, f"the rubric '{name}'")


def read_rubric(path: str | Path, *, in_run: bool = False) -> Rubric:
    """A file, or a bundled rubric by name. Weights are as in the file: see `normalised`. `in_run`: what earlier
    versions allowed is no error."""
    return parse_rubric(rubric_text(path), str(path), json=Path(path).suffix == ".json", in_run=in_run)


def parse_rubric(text: str, where: str, *, json: bool = False, in_run: bool = False) -> Rubric:
    read, given = read_mapping(text, where, "a rubric", json=json)
    rubric, invalid = validated(Rubric, given, "the rubric", in_run=in_run)
    repeated = list(_repeated_names(given))
    reported = {fault.line.partition(": ")[2] for fault in repeated}
    invalid = [fault for fault in invalid if fault.line.partition(": ")[2] not in reported] + repeated
    lines = [(read.line(fault.path), fault.line) for fault in [*invalid, *_bad_patterns(given)]]
    lines += [(read.line(f.path, f.fault.line), f"{format_path(f.path)}: {f.fault.what}") for f in rubric_faults(given)]
    if rubric is None or lines:
        raise UserError(error_lines(where, lines))
    return rubric


def read_mapping(text: str, where: str, what: str, *, json: bool) -> tuple[ParsedFile, dict[str, Any]]:
    """A file that must be a mapping, with the positions of its keys; and its data."""
    read = read_text(text, where, json=json)
    if not isinstance(read.data, dict):
        raise UserError(f"{where}: {what} must be a mapping of keys to values")
    return read, _with_version_as_text(read)


def validated(
    model: type[Checked], given: dict[str, Any], whole: str, *, in_run: bool = False
) -> tuple[Checked | None, list[FieldError]]:
    """The file's content, or None and its errors."""
    try:
        return model.model_validate(given, context={"in_run": in_run}), []
    except ValidationError as errors:
        return None, field_errors(errors.errors()[:MAX_ERRORS], given, model, whole)


def error_lines(where: str, lines: Iterable[tuple[int, str]]) -> str:
    """In the order of the file's lines."""
    return "\n".join(f"{where}, line {line}: {one_line(what)}" for line, what in sorted(set(lines)))


def _with_version_as_text(read: ParsedFile) -> dict[str, Any]:
    """`version: 1` is read as the string '1'."""
    assert isinstance(read.root, yaml.MappingNode)
    written = {
        key.value: value.value
        for key, value in read.root.value
        if key.value == "version" and isinstance(value, yaml.ScalarNode) and value.tag in NON_STRINGS and value.value
    }
    return {**read.data, **written}


def _items(given: Any) -> Iterator[tuple[str, int, Mapping[str, Any]]]:
    """Category, index and item, where the file has them."""
    categories = given.get("categories")
    for name, category in categories.items() if isinstance(categories, Mapping) else ():
        items = category.get("items") if isinstance(category, Mapping) else None
        for place, item in enumerate(items if isinstance(items, list) else ()):
            if isinstance(item, Mapping):
                yield name, place, item


def _repeated_names(given: Any) -> Iterator[FieldError]:
    """At the line of the second item, even if the category has other errors."""
    seen: set[tuple[str, str]] = set()
    for category, place, item in _items(given):
        name = item.get("name")
        if isinstance(name, str) and (category, name) in seen:
            path = ("categories", category, "items", place, "name")
            yield FieldError(path, f"{format_path(path)}: two items are named {name!r}")
        seen.add((category, str(name)))


def _bad_patterns(given: Any) -> Iterator[FieldError]:
    for category, place, item in _items(given):
        pattern = item.get("pattern")
        if item.get("flow") != "regex" or not isinstance(pattern, str):
            continue
        try:
            re.compile(pattern)
        except (re.error, RecursionError, OverflowError) as error:
            path = ("categories", category, "items", place, "pattern")
            yield FieldError(path, f"{format_path(path)}: not a valid regular expression: {error}")


def normalised(rubric: Rubric) -> tuple[Rubric, list[str]]:
    """The rubric with weights that sum to one in every category, and notices: of each category that was changed, and of
    names that end with a space."""
    categories: dict[str, Category] = {}
    notices = []
    for name, category in rubric.categories.items():
        spaced = [repr(each) for each in (name, *(item.name for item in category.items)) if each.endswith(" ")]
        if spaced:
            notices.append(
                f"names that end with a space are kept in this run, and refused in a new one: {', '.join(spaced)}"
            )
        total = sum(item.weight for item in category.items)
        if abs(total - 1) <= TOLERANCE:
            categories[name] = category
            continue
        items = [item.model_copy(update={"weight": item.weight / total}) for item in category.items]
        categories[name] = category.model_copy(update={"items": items})
        notices.append(f"the weights of '{name}' sum to {total:g} and are normalised to sum to one")
    return rubric.model_copy(update={"categories": categories}), notices


def rubric_version(rubric: Rubric) -> str:
    """Such as `1@3fa2b1c4`: the file's version and a hash of its content, which changes with any edit."""
    content = normalised(rubric)[0].model_dump(mode="json", exclude_defaults=True, exclude={"version"})
    return f"{rubric.version}@{sha256(dumps(content, sort_keys=True).encode()).hexdigest()[:8]}"


ITEM_PATH = "categories.one.items[0]"


def checked_item(given: Mapping[str, Any]) -> AnyItem:
    """Checked as in a file, templates and patterns too. All errors are raised together, one per line."""
    whole = {"categories": {"one": {"items": [dict(given)]}}}
    try:
        rubric = parse_rubric(json.dumps(whole, allow_nan=False), "item", json=True)
    except UserError as error:
        lines = [re.sub(r"^item(, line \d+)?: ", "", line) for line in str(error).splitlines()]
        raise UserError(
            "\n".join(line.replace(f"{ITEM_PATH}.", "").replace(ITEM_PATH, "the item") for line in lines)
        ) from error
    except (TypeError, ValueError) as error:
        raise UserError(f"the item cannot be written as JSON: {error}") from error
    return rubric.categories["one"].items[0]
