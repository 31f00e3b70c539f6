"""What the formats have in common: names that fit, what has no counterpart, and which category is meant."""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from vigneron.errors import UserError, did_you_mean
from vigneron.rubric.model import DEFAULT_CANARIES, AnyItem, Category, Rubric
from vigneron.rubric.read import checked_item

LONGEST_NAME = 60
ONLY = "answers"
"""The category of a format that knows none."""


class NoCounterpart(ValueError):
    """Why something cannot be said in the other format."""


def item_from(given: Mapping[str, Any]) -> AnyItem:
    try:
        return checked_item(given)
    except UserError as error:
        raise NoCounterpart("; ".join(str(error).splitlines())) from error


def left_out(what: str, why: object) -> str:
    return f"{what} is left out: {why}"


def json_text(data: Any, *, indent: int | None = 2) -> str:
    """Letters as they are; what is no character, or what an editor or YAML takes for something else, as escapes."""
    text = json.dumps(data, indent=indent, ensure_ascii=False) + "\n"
    return re.sub("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]", lambda c: f"\\u{ord(c[0]):04x}", text)


def said_of(lines: Iterable[tuple[str, str]]) -> list[str]:
    """Notices about items, of which several may be the same."""
    names: dict[str, list[str]] = {}
    for name, line in lines:
        names.setdefault(line, []).append(f"'{name}'")
    return [f"{', '.join(of)}: {line}" for line, of in names.items()]


def fitting_name(given: str, taken: Collection[str] = (), otherwise: str = "item") -> str:
    """The nearest name that a rubric may hold, unlike those taken."""
    name = re.sub(r"[^A-Za-z0-9 _.-]+", "-", given).lstrip(" _.-").rstrip()[:LONGEST_NAME].rstrip() or otherwise
    found, number = name, 1
    while found in taken:
        number += 1
        found = f"{name[: LONGEST_NAME - len(str(number)) - 1]} {number}"
    return found


def renamed(given: str, name: str) -> list[str]:
    return [] if given == name else [f"{given!r} is named {name!r} here"]


def one_category(rubric: Rubric, chosen: str | None, what: str) -> tuple[str, Category]:
    names = list(rubric.categories)
    if chosen is None and len(names) > 1:
        raise UserError(f"{what} know no categories, and the rubric has {', '.join(names)}: choose one with --category")
    name = names[0] if chosen is None else chosen
    if name not in rubric.categories:
        raise UserError(f"--category: the rubric has no category '{name}'{did_you_mean(name, names)}")
    return name, rubric.categories[name]


def kept_apart(rubric: Rubric, category: Category, *, tags: bool = True) -> Iterator[str]:
    """Notices for what only our own format holds."""
    told = "it is told to the policy, not to a grader"
    for key in ("generate", "revise", "about"):
        if getattr(category, key):
            yield left_out(f"`{key}`", told if key != "about" else "it is for readers of the rubric")
    if rubric.version != "1":
        yield left_out(f"the version '{rubric.version}'", "there is no place for it")
    if rubric.canaries != DEFAULT_CANARIES:
        yield left_out("`canaries`", "there is no place for it")
    if tags and any(item.tags for item in category.items):
        yield left_out("`tags`", "there is no place for it")


def none_left(where: str, notices: Collection[str]) -> UserError:
    return UserError(f"{where}: nothing is left to convert: {'; '.join(notices) or 'it is empty'}")
