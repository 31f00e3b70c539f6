"""Shared by the formats: valid names, notices about what has no counterpart, and the choice of a category."""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import regex

from vigneron.errors import UserError, did_you_mean
from vigneron.rubric.model import DEFAULT_CANARIES, AnyItem, Category, Rubric
from vigneron.rubric.read import checked_item

MAX_NAME = 60
DEFAULT_CATEGORY = "answers"
"""The category of a rubric from a format without categories."""


class NoCounterpart(ValueError):
    """Why something cannot be converted to the other format."""


def item_from(given: Mapping[str, Any]) -> AnyItem:
    try:
        return checked_item(given)
    except UserError as error:
        raise NoCounterpart("; ".join(str(error).splitlines())) from error


def left_out(what: str, why: object) -> str:
    return f"{what} is left out: {why}"


def json_text(data: Any, *, indent: int | None = 2) -> str:
    """JSON with letters as they are; control characters, surrogates and line separators as escapes."""
    text = json.dumps(data, indent=indent, ensure_ascii=False) + "\n"
    return re.sub("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]", lambda c: f"\\u{ord(c[0]):04x}", text)


def item_notices(lines: Iterable[tuple[str, str]]) -> list[str]:
    """Notices from pairs of item name and text; equal texts are merged."""
    names: dict[str, list[str]] = {}
    for name, line in lines:
        names.setdefault(line, []).append(f"'{name}'")
    return [f"{', '.join(of)}: {line}" for line, of in names.items()]


def fitting_name(given: str, taken: Collection[str] = (), otherwise: str = "item") -> str:
    """A valid name for a rubric item like the given one, and not taken."""
    fitting = regex.sub(r"[^\p{L}\p{M}\p{N} _.-]+", "-", given)
    name = regex.sub(r"^[^\p{L}\p{N}]+", "", fitting)[:MAX_NAME].rstrip() or otherwise
    unique, number = name, 1
    while unique in taken:
        number += 1
        unique = f"{name[: MAX_NAME - len(str(number)) - 1]} {number}"
    return unique


def renamed(given: str, name: str) -> list[str]:
    return [] if given == name else [f"{given!r} is renamed to {name!r}"]


def one_category(rubric: Rubric, chosen: str | None, what: str) -> tuple[str, Category]:
    names = list(rubric.categories)
    if chosen is None and len(names) > 1:
        raise UserError(f"{what} have no categories, and the rubric has {', '.join(names)}: choose one with --category")
    name = names[0] if chosen is None else chosen
    if name not in rubric.categories:
        raise UserError(f"--category: the rubric has no category '{name}'{did_you_mean(name, names)}")
    return name, rubric.categories[name]


def format_only_notices(rubric: Rubric, category: Category, *, tags: bool = True) -> Iterator[str]:
    """Notices about what only Vigneron's format has."""
    for_policy = "it is a prompt for the policy, not for a grader"
    for key in ("generate", "revise", "about"):
        if getattr(category, key):
            yield left_out(f"`{key}`", for_policy if key != "about" else "it is for readers of the rubric")
    if rubric.version != "1":
        yield left_out(f"the version '{rubric.version}'", "no counterpart")
    if rubric.canaries != DEFAULT_CANARIES:
        yield left_out("`canaries`", "no counterpart")
    if tags and any(item.tags for item in category.items):
        yield left_out("`tags`", "no counterpart")


def none_left(where: str, notices: Collection[str]) -> UserError:
    return UserError(f"{where}: nothing can be converted: {'; '.join(notices) or 'it is empty'}")
