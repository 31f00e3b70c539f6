"""Reading a rubric: YAML or JSON, checked whole, every error at once with its line; what its weights and version mean.

Light on purpose: no torch here, so that a broken file is refused at once.
"""

import json
import re
from collections.abc import Iterator, Mapping
from hashlib import sha256
from importlib import resources
from importlib.resources.abc import Traversable
from json import dumps
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from vigneron.errors import UserError, did_you_mean
from vigneron.files import user_path
from vigneron.recipe import config_text
from vigneron.rubric.fences import one_line
from vigneron.rubric.model import AnyItem, Category, Rubric
from vigneron.rubric.templates import rubric_faults
from vigneron.rubric.yaml_positions import NO_TEXTS, Read, read_text
from vigneron.validation import FieldError, field_errors, format_path

SUFFIXES = (".yaml", ".yml", ".json")
CLOSE_ENOUGH = 1e-6
MOST_ERRORS = 200


def example_names() -> list[str]:
    return sorted(entry.name.removesuffix(".yaml") for entry in _examples().iterdir() if entry.name.endswith(".yaml"))


def _examples() -> Traversable:
    return resources.files("vigneron") / "rubric" / "examples"


def rubric_text(path: str | Path) -> str:
    """The text of a rubric that ships with the package, by its name, or of a file."""
    name = str(path)
    if name in example_names():
        return (_examples() / f"{name}.yaml").read_text(encoding="utf-8")
    file = user_path(path)
    if file.suffix not in SUFFIXES:
        known = did_you_mean(name, example_names())
        raise UserError(f"unknown rubric '{name}'{known}; a .yaml or .json file also does")
    return config_text(file, f"the rubric '{name}'")


def read_rubric(path: str | Path) -> Rubric:
    """A file, or the name of an example. Weights are as they stand there: see `normalised`."""
    return parse_rubric(rubric_text(path), str(path), json=Path(path).suffix == ".json")


def parse_rubric(text: str, where: str, *, json: bool = False) -> Rubric:
    read = read_text(text, where, json=json)
    if not isinstance(read.data, dict):
        raise UserError(f"{where}: a rubric is a mapping of keys to values")
    given = _with_version_as_text(read)
    rubric = None
    try:
        rubric = Rubric.model_validate(given)
        found = []
    except ValidationError as errors:
        found = field_errors(errors.errors()[:MOST_ERRORS], given, Rubric, "the rubric")
    repeated = list(_repeated_names(given))
    said_there = {fault.line.partition(": ")[2] for fault in repeated}
    found = [fault for fault in found if fault.line.partition(": ")[2] not in said_there] + repeated
    lines = [(read.line(fault.path), fault.line) for fault in [*found, *_bad_patterns(given)]]
    lines += [(read.line(f.path, f.fault.line), f"{format_path(f.path)}: {f.fault.what}") for f in rubric_faults(given)]
    if rubric is None or lines:
        raise UserError("\n".join(f"{where}, line {line}: {one_line(what)}" for line, what in sorted(set(lines))))
    return rubric


def _with_version_as_text(read: Read) -> dict[str, Any]:
    """`version: 1` is the text '1', as it is written."""
    assert isinstance(read.root, yaml.MappingNode)
    written = {
        key.value: value.value
        for key, value in read.root.value
        if key.value == "version" and isinstance(value, yaml.ScalarNode) and value.tag in NO_TEXTS and value.value
    }
    return {**read.data, **written}


def _items(given: Any) -> Iterator[tuple[str, int, Mapping[str, Any]]]:
    """Category, place and item, as far as they are there."""
    categories = given.get("categories")
    for name, category in categories.items() if isinstance(categories, Mapping) else ():
        items = category.get("items") if isinstance(category, Mapping) else None
        for place, item in enumerate(items if isinstance(items, list) else ()):
            if isinstance(item, Mapping):
                yield name, place, item


def _repeated_names(given: Any) -> Iterator[FieldError]:
    """Said where the second one stands, and also where something else is wrong with the category."""
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
            yield FieldError(path, f"{format_path(path)}: not a regular expression: {error}")


def normalised(rubric: Rubric) -> tuple[Rubric, list[str]]:
    """With weights that sum to one in every category, and a notice for each category where they did not."""
    categories: dict[str, Category] = {}
    notices = []
    for name, category in rubric.categories.items():
        total = sum(item.weight for item in category.items)
        if abs(total - 1) <= CLOSE_ENOUGH:
            categories[name] = category
            continue
        items = [item.model_copy(update={"weight": item.weight / total}) for item in category.items]
        categories[name] = category.model_copy(update={"items": items})
        notices.append(f"the weights of '{name}' sum to {total:g}: divided by it, so that they sum to one")
    return rubric.model_copy(update={"categories": categories}), notices


def rubric_version(rubric: Rubric) -> str:
    """As in `1@3fa2b1c4`: what the file says, and a hash of what it holds, so that an edited file is seen."""
    held = normalised(rubric)[0].model_dump(mode="json", exclude_defaults=True, exclude={"version"})
    return f"{rubric.version}@{sha256(dumps(held, sort_keys=True).encode()).hexdigest()[:8]}"


HERE = "categories.one.items[0]"


def checked_item(given: Mapping[str, Any]) -> AnyItem:
    """As it would be checked in a file, templates and patterns too. Everything wrong is one error, a line each."""
    whole = {"categories": {"one": {"items": [dict(given)]}}}
    try:
        rubric = parse_rubric(json.dumps(whole, allow_nan=False), "item", json=True)
    except UserError as error:
        lines = [re.sub(r"^item(, line \d+)?: ", "", line) for line in str(error).splitlines()]
        raise UserError("\n".join(line.replace(f"{HERE}.", "").replace(HERE, "the item") for line in lines)) from error
    except (TypeError, ValueError) as error:
        raise UserError(f"the item cannot be written as JSON: {error}") from error
    return rubric.categories["one"].items[0]
