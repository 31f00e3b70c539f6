"""A rubric's templates: sandboxed jinja2, checked before anything is spent and rendered within limits.

Texts of models and datasets are data. In a prompt they stand in fences (`fences.py`), also where a filter or a loop has
been at them; in what a grader compares with, columns stand as they are. Nothing of a text is ever read as a template.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from jinja2 import StrictUndefined, Template, Undefined, UndefinedError
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from vigneron.errors import UserError, first_line
from vigneron.rubric.fences import LONGEST_FENCED, as_text, fenced, visible
from vigneron.rubric.model import Item, Rubric
from vigneron.rubric.template_language import (
    LONGEST_OUTPUT,
    TemplateFault,
    columns_of,
    template_faults,
)
from vigneron.sources.verdict import Answered
from vigneron.validation import Path, format_path

__all__ = ["LONGEST_FENCED", "check_templates", "fenced", "render_plain", "render_prompt", "rubric_faults", "visible"]

NAMES = {
    "generate": ("question",),
    "revise": ("question", "response", "critique"),
    "critique": ("question", "response", "row", "item"),
    "score": ("question", "response", "critique", "row", "item"),
    "reference": ("question", "row", "item"),
}
"""What a template of each key may name. The `score` of a `verify` item has a `truth`, and no `critique`."""
MOST_PIECES = 100_000


class _Own(str):
    """A text of the rubric's own author, which needs no fence."""


class _Named(str):
    """A text of somebody else's, and what its fence is called."""

    name: str

    @classmethod
    def of(cls, name: str, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        named = cls(value)
        named.name = name
        return named


class _Environment(ImmutableSandboxedEnvironment):
    """A value's parts are the keys of a mapping and the places of a list: no attribute of Python's is ever reached."""

    def __init__(self, *, fences: bool) -> None:
        super().__init__(
            undefined=StrictUndefined,
            autoescape=False,
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=_in_a_fence if fences else _plain,
        )
        self.globals.clear()

    def getattr(self, obj: Any, attribute: str) -> Any:
        return super().getattr(obj, attribute) if isinstance(obj, LoopContext) else self.getitem(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(obj, Undefined):
            return obj
        try:
            if isinstance(obj, Mapping | list):
                return obj[argument]
        except (LookupError, TypeError):
            pass
        return self.undefined(f"the row has no '{argument}'", obj, argument)


def _plain(value: Any) -> Any:
    return value if isinstance(value, Undefined) else as_text(value)


def _in_a_fence(value: Any) -> Any:
    if isinstance(value, Undefined | _Own):
        return value
    return fenced(value.name if isinstance(value, _Named) else "data", as_text(value))


@lru_cache(maxsize=2)
def _environment(fences: bool) -> _Environment:
    return _Environment(fences=fences)


@lru_cache(maxsize=1024)
def _compiled(text: str, names: tuple[str, ...], fences: bool) -> Template:
    environment = _environment(fences)
    found = template_faults(environment, text, names)
    if found:
        raise UserError(found[0].what)
    return environment.from_string(text)


def names_of(key: str, flow: str | None = None) -> tuple[str, ...]:
    names = NAMES[key]
    return tuple("truth" if name == "critique" else name for name in names) if flow == "verify" else names


def render(text: str, names: tuple[str, ...], values: Mapping[str, Any], *, fences: bool, where: str) -> str:
    pieces = []
    size = 0
    try:
        for piece in _compiled(text, names, fences).generate(**values):
            pieces.append(piece)
            size += len(piece)
            if size > LONGEST_OUTPUT or len(pieces) > MOST_PIECES:
                raise UserError(f"more than {LONGEST_OUTPUT} characters when rendered: shorten it")
    except (UndefinedError, UserError) as error:
        raise UserError(f"{where}: {error}") from error
    except Exception as error:  # the edge to somebody's template: it can fail in any way
        raise UserError(f"{where}: {type(error).__name__} when rendered: {visible(first_line(error))}") from error
    return "".join(pieces)


def render_prompt(
    text: str, answered: Answered, item: Item, key: str, *, critique: str | None = None, truth: str | None = None
) -> str:
    """For a judge: every text of others in its fence. `key`: which of the item's templates it is."""
    given = {"question": answered.question, "response": answered.response, "critique": critique, "truth": truth}
    values = {name: _Named.of(name, value) for name, value in given.items() if value is not None}
    row = {column: _Named.of(_fence_name(column), value) for column, value in answered.row.items()}
    names = names_of(key, getattr(item, "flow", None))
    return render(text, names, {**values, "row": row, "item": _own(item)}, fences=True, where=_where(item, key))


def render_plain(text: str, answered: Answered, item: Item, key: str = "reference") -> str:
    """For a grader: columns as they are."""
    values = {"question": answered.question, "row": dict(answered.row), "item": _own(item)}
    return render(text, names_of(key), values, fences=False, where=_where(item, key))


def _fence_name(column: str) -> str:
    return f"row.{column}" if re.fullmatch(r"[A-Za-z][\w.]{0,39}", column, re.ASCII) else "row"


def _own(item: Item) -> dict[str, str]:
    return {"name": _Own(item.name), "description": _Own(item.description)}


def _where(item: Item, key: str) -> str:
    return f"the rubric's item '{item.name}', {key}"


@dataclass(frozen=True)
class InTemplate:
    path: Path
    """Of the template in the rubric."""
    fault: TemplateFault


def rubric_faults(given: Any) -> Iterator[InTemplate]:
    """What is wrong with the templates of a rubric as it was read, however broken the rest of it is."""
    for path, text, names in templates_of(given):
        for fault in template_faults(_environment(True), text, names):
            yield InTemplate(path, fault)


def templates_of(given: Any) -> Iterator[tuple[Path, str, tuple[str, ...]]]:
    """Path, text and names of every template."""
    for name, category in _mapping(_mapping(given).get("categories")).items():
        here: Path = ("categories", str(name))
        yield from _templates_in(category, here, ("generate", "revise"))
        items = _mapping(category).get("items")
        for place, item in enumerate(items if isinstance(items, list) else []):
            yield from _templates_in(item, (*here, "items", place), ("critique", "score", "reference"))


def _templates_in(section: Any, path: Path, keys: tuple[str, ...]) -> Iterator[tuple[Path, str, tuple[str, ...]]]:
    section = _mapping(section)
    for key in keys:
        if isinstance(section.get(key), str):
            yield (*path, key), section[key], names_of(key, str(section.get("flow")))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def check_templates(rubric: Rubric, where: str = "the rubric") -> None:
    """Of a rubric that was not read from a file; `read_rubric` has checked those that were, and names their lines."""
    found = [f"{where}: {format_path(f.path)}: {f.fault.what}" for f in rubric_faults(rubric.model_dump())]
    if found:
        raise UserError("\n".join(found))


def needed_columns(text: str) -> set[str]:
    return columns_of(_environment(True), text)
