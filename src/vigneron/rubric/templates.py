"""A rubric's templates: sandboxed jinja2, checked when the rubric is read and rendered within limits.

Texts from models and datasets are data, never templates. In a prompt they are in fences (`fences.py`), even after a
filter or inside a loop; in a grader's reference, columns are inserted as they are.
"""

import json
import math
import re
import time
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from jinja2 import StrictUndefined, Template, Undefined, UndefinedError, pass_eval_context
from jinja2.filters import FILTERS
from jinja2.nodes import EvalContext
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from vigneron.errors import UserError, first_line
from vigneron.rubric.fences import MAX_FENCED, as_text, fenced, visible
from vigneron.rubric.model import Item, Rubric
from vigneron.rubric.template_language import (
    MAX_OUTPUT,
    TemplateFault,
    columns_of,
    loops_of,
    template_faults,
)
from vigneron.sources.verdict import GraderInput
from vigneron.validation import Path, format_path

__all__ = ["MAX_FENCED", "check_templates", "fenced", "render_plain", "render_prompt", "rubric_faults", "visible"]

NAMES = {
    "generate": ("question",),
    "revise": ("question", "response", "critique"),
    "critique": ("question", "response", "row", "item"),
    "score": ("question", "response", "critique", "row", "item"),
    "reference": ("question", "row", "item"),
}
"""The variables of each key's template. The `score` of a `verify` item has `truth` instead of `critique`."""
MAX_CHUNKS = 100_000
MAX_VISITS = 1_000_000
"""Of all parts of a template in its loops, over all their iterations."""
MAX_JOINED = 10_000_000
"""Characters that `join` or `tojson` with an indent may write; what is shown of them is cut."""
CPU_SECONDS = 5.0


class _Trusted(str):
    """Text by the rubric's author, which needs no fence."""


class _Untrusted(str):
    """Text from a model or a dataset, with the name of its fence."""

    name: str

    @classmethod
    def of(cls, name: str, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        named = cls(value)
        named.name = name
        return named


_DEADLINE: ContextVar[float] = ContextVar("_DEADLINE", default=math.inf)


def _check_time() -> None:
    """Called whenever a template reads a column. CPU time, so that a busy machine makes no difference."""
    if time.thread_time() > _DEADLINE.get():
        raise UserError(f"takes more than {CPU_SECONDS:g} s to render: shorten it")


class _Environment(ImmutableSandboxedEnvironment):
    """Attributes are the keys of a mapping or the indices of a list, never Python attributes."""

    def __init__(self, *, fences: bool) -> None:
        super().__init__(
            undefined=StrictUndefined,
            autoescape=False,
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=_fenced if fences else _plain,
        )
        self.globals.clear()
        self.filters["join"] = _join
        self.policies["json.dumps_function"] = _dumps

    def getattr(self, obj: Any, attribute: str) -> Any:
        _check_time()
        return super().getattr(obj, attribute) if isinstance(obj, LoopContext) else self.getitem(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        _check_time()
        if isinstance(obj, Undefined):
            return obj
        try:
            if isinstance(obj, Mapping | list):
                return obj[argument]
        except (LookupError, TypeError):
            pass
        return self.undefined(f"the row has no '{argument}'", obj, argument)


@pass_eval_context
def _join(context: EvalContext, value: Any, d: str = "", attribute: str | None = None) -> str:
    """jinja2's, with a limit on its output."""
    values = list(value)
    if len(values) * len(d) > MAX_JOINED:
        raise UserError(f"`join` writes more than {MAX_JOINED:,} characters")
    return str(FILTERS["join"](context, values, d, attribute))


def _dumps(value: Any, *, indent: int | None = None, **options: Any) -> str:
    """For `tojson`: with an indent, deeply nested data grows by its depth."""
    if indent is None:
        return json.dumps(value, **options)
    pieces, size = [], 0
    for piece in json.JSONEncoder(indent=indent, **options).iterencode(value):
        pieces.append(piece)
        size += len(piece)
        if size > MAX_JOINED:
            raise UserError(f"`tojson` writes more than {MAX_JOINED:,} characters")
    return "".join(pieces)


def _plain(value: Any) -> Any:
    return value if isinstance(value, Undefined) else as_text(value)


def _fenced(value: Any) -> Any:
    if isinstance(value, Undefined | _Trusted):
        return value
    return fenced(value.name if isinstance(value, _Untrusted) else "data", as_text(value))


@lru_cache(maxsize=2)
def _environment(fences: bool) -> _Environment:
    return _Environment(fences=fences)


@lru_cache(maxsize=1024)
def _compiled(text: str, names: tuple[str, ...], fences: bool) -> tuple[Template, dict[str, int]]:
    """The template, and the number of parts in its loops over each column."""
    environment = _environment(fences)
    errors = template_faults(environment, text, names)
    if errors:
        raise UserError(errors[0].what)
    return environment.from_string(text), loops_of(environment, text)


def names_of(key: str, flow: str | None = None) -> tuple[str, ...]:
    names = NAMES[key]
    return tuple("truth" if name == "critique" else name for name in names) if flow == "verify" else names


def render(text: str, names: tuple[str, ...], values: Mapping[str, Any], *, fences: bool, where: str) -> str:
    chunks = []
    size = 0
    before = _DEADLINE.set(time.thread_time() + CPU_SECONDS)
    try:
        template, loops = _compiled(text, names, fences)
        row = values.get("row", {})
        visits = sum(parts * _length(row.get(column)) for column, parts in loops.items())
        if visits > MAX_VISITS:
            raise UserError(f"visits more than {MAX_VISITS:,} parts in its loops: shorten it")
        for chunk in template.generate(**values):
            chunks.append(chunk)
            size += len(chunk)
            if size > MAX_OUTPUT or len(chunks) > MAX_CHUNKS:
                raise UserError(f"more than {MAX_OUTPUT} characters when rendered: shorten it")
    except (UndefinedError, UserError) as error:
        raise UserError(f"{where}: {error}") from error
    except Exception as error:  # a user's template can fail in any way
        raise UserError(f"{where}: {type(error).__name__} when rendered: {visible(first_line(error))}") from error
    finally:
        _DEADLINE.reset(before)
    return "".join(chunks)


def _length(column: Any) -> int:
    return len(column) if isinstance(column, str | list | Mapping) else 0


def render_prompt(
    text: str, sample: GraderInput, item: Item, key: str, *, critique: str | None = None, truth: str | None = None
) -> str:
    """For a judge, with every untrusted text in a fence. `key` is the template's key in the item."""
    given = {"question": sample.question, "response": sample.response, "critique": critique, "truth": truth}
    values = {name: _Untrusted.of(name, value) for name, value in given.items() if value is not None}
    row = {column: _Untrusted.of(_fence_name(column), value) for column, value in sample.row.items()}
    names = names_of(key, getattr(item, "flow", None))
    return render(text, names, {**values, "row": row, "item": _item_values(item)}, fences=True, where=_where(item, key))


def render_plain(text: str, sample: GraderInput, item: Item, key: str = "reference") -> str:
    """For a grader, with columns as they are."""
    values = {"question": sample.question, "row": dict(sample.row), "item": _item_values(item)}
    return render(text, names_of(key), values, fences=False, where=_where(item, key))


def _fence_name(column: str) -> str:
    return f"row.{column}" if re.fullmatch(r"[A-Za-z][\w.]{0,39}", column, re.ASCII) else "row"


def _item_values(item: Item) -> dict[str, str]:
    return {"name": _Trusted(item.name), "description": _Trusted(item.description)}


def _where(item: Item, key: str) -> str:
    return f"the rubric's item '{item.name}', {key}"


@dataclass(frozen=True)
class InTemplate:
    path: Path
    """The template's path in the rubric."""
    fault: TemplateFault


def rubric_faults(given: Any) -> Iterator[InTemplate]:
    """Faults of all templates of a rubric's raw data, even if other parts are invalid."""
    for path, text, names in templates_of(given):
        for fault in template_faults(_environment(True), text, names):
            yield InTemplate(path, fault)


def templates_of(given: Any) -> Iterator[tuple[Path, str, tuple[str, ...]]]:
    """Path, text and variables of every template."""
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
    """For a rubric that was not read from a file; `read_rubric` checks files and reports line numbers."""
    errors = [f"{where}: {format_path(f.path)}: {f.fault.what}" for f in rubric_faults(rubric.model_dump())]
    if errors:
        raise UserError("\n".join(errors))


def needed_columns(text: str) -> set[str]:
    return columns_of(_environment(True), text)
