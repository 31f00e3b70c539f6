"""JSON for the pages' scripts: text safe to show, errors in one line, metrics in groups."""

import math
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse

from vigneron.errors import UserError, visible
from vigneron.run_store.headline_metrics import COMMON
from vigneron.run_store.metric_table import RUBRIC, SECTIONS, metric
from vigneron.run_store.rubric_items import HELD_OUT_PREFIX, HELD_OUT_RUBRIC_PREFIX, TRAINING_PREFIX
from vigneron.run_store.series import Curve
from vigneron.text import plain
from vigneron.web.runs import NoSuchRun

MAX_CHARACTERS = 20_000
"""Of one text; the rest is counted, not sent."""

Choice = TypeVar("Choice", bound=str)


def json_endpoint(answer: Callable[[Request], Any]) -> Callable[[Request], JSONResponse]:
    """An endpoint, run in a thread. Any error becomes one line in the page."""

    @wraps(answer)
    def endpoint(request: Request) -> JSONResponse:
        try:
            return JSONResponse(to_json(answer(request)))
        except NoSuchRun as error:
            return _error(error, 404)
        except UserError as error:
            return _error(error, 400)
        except sqlite3.Error as error:
            return _error(f"cannot read a file of the run: {error}", 503)
        except OSError as error:
            return _error(f"cannot read a file of the run: {error.strerror or error}", 503)
        except Exception as error:  # a damaged file can fail in many ways
            return _error(f"a file of the run is damaged ({type(error).__name__}: {error})", 500)

    return endpoint


def _error(what: object, status: int) -> JSONResponse:
    return JSONResponse({"error": visible(str(what))[:500]}, status)


def to_json(value: Any) -> Any:
    """A value as JSON. Control characters, and those that reverse the direction of text, are made visible."""
    if isinstance(value, str):
        shown = plain(value[:MAX_CHARACTERS])
        return shown if len(value) <= MAX_CHARACTERS else f"{shown} … ({len(value) - MAX_CHARACTERS} more characters)"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Curve):  # long, and all numbers are finite
        points = {"steps": value.steps, "means": value.means}
        return points if value.lows == value.highs else {**points, "lows": value.lows, "highs": value.highs}
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {visible(str(key)): to_json(one) for key, one in value.items()}
    if isinstance(value, Sequence | set):
        return [to_json(one) for one in value]
    return value if value is None or isinstance(value, bool | int | float) else plain(str(value))


def number(request: Request, name: str) -> float | None:
    text = request.query_params.get(name, "")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UserError(f"{name}: {text[:40]!r} is not a number")
    return value


def whole(request: Request, name: str) -> int | None:
    value = number(request, name)
    if value is None:
        return None
    if abs(value) >= 2**53:
        raise UserError(f"{name}: {value:g} is too large")
    return int(value)


def choice(request: Request, name: str, known: Sequence[Choice]) -> Choice:
    """One of the known values; the first one is the default."""
    text = request.query_params.get(name, "")
    if not text:
        return known[0]
    chosen = next((one for one in known if one == text), None)
    if chosen is None:
        raise UserError(f"{name}: {text[:40]!r} is not one of {', '.join(known)}")
    return chosen


@dataclass(frozen=True)
class Group:
    title: str
    names: tuple[str, ...]
    open: bool


def groups(names: Iterable[str], first: Sequence[str] = COMMON) -> list[Group]:
    """Each name once: those of `first` in an overview, the others by their section of the table of metrics. Rubric
    metrics are folded, one group per category."""
    names = list(names)
    held_out_first = sorted(first, key=lambda key: not key.startswith("eval/"))
    overview = [name for name in (*held_out_first, "completions/mean_length") if name in names]
    by_section: dict[str, list[str]] = {}
    for name in names:
        if name not in overview:
            by_section.setdefault(metric(name).section, []).append(name)
    order = {section: place for place, section in enumerate(SECTIONS)}
    others = sorted(by_section, key=lambda section: (order.get(section, len(order)), section))
    return [
        *([Group("Overview", tuple(overview), True)] if overview else []),
        *(Group(section, tuple(by_section[section]), not overview) for section in others if section != RUBRIC),
        *_by_category(by_section.get(RUBRIC, ())),
    ]


def _by_category(names: Iterable[str]) -> list[Group]:
    by_category: dict[str, list[str]] = {}
    for name in names:
        prefix = next(p for p in (HELD_OUT_RUBRIC_PREFIX, HELD_OUT_PREFIX, TRAINING_PREFIX) if name.startswith(p))
        by_category.setdefault(name.removeprefix(prefix).split("/")[0], []).append(name)
    return [Group(f"Rubric: {category}", tuple(of), False) for category, of in sorted(by_category.items())]
