"""What the pages' scripts are answered with: JSON in which every text is safe to show, and errors in one line."""

import math
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse

from vigneron.errors import UserError, visible
from vigneron.run_store.rubric_items import CANARY_PREFIX, HELD_OUT_PREFIX, SECOND_PREFIX, TRAINING_PREFIX, items_of
from vigneron.run_store.curves import Curve
from vigneron.text import plain
from vigneron.web.runs import NoSuchRun

LONGEST = 20_000
"""Characters of one text; what follows is counted, not sent."""

Choice = TypeVar("Choice", bound=str)


def answering(answer: Callable[[Request], Any]) -> Callable[[Request], JSONResponse]:
    """An endpoint, run in a thread of its own. Whatever fails is one line in the page."""

    @wraps(answer)
    def endpoint(request: Request) -> JSONResponse:
        try:
            return JSONResponse(sent(answer(request)))
        except NoSuchRun as error:
            return _error(error, 404)
        except UserError as error:
            return _error(error, 400)
        except sqlite3.Error as error:
            return _error(f"a file of the run cannot be read: {error}", 503)
        except OSError as error:
            return _error(f"a file of the run cannot be read: {error.strerror or error}", 503)
        except Exception as error:  # damaged files have many ways to fail, and none may show more than a line
            return _error(f"a file of the run is not as it should be ({type(error).__name__}: {error})", 500)

    return endpoint


def _error(what: object, status: int) -> JSONResponse:
    return JSONResponse({"error": visible(str(what))[:500]}, status)


def sent(value: Any) -> Any:
    """As JSON can hold it. Control characters and those that turn text around are made visible."""
    if isinstance(value, str):
        shown = plain(value[:LONGEST])
        return shown if len(value) <= LONGEST else f"{shown} … ({len(value) - LONGEST} more characters)"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Curve):  # long, and of finite numbers alone
        points = {"steps": value.steps, "means": value.means}
        return points if value.lows == value.highs else {**points, "lows": value.lows, "highs": value.highs}
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: sent(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {visible(str(key)): sent(one) for key, one in value.items()}
    if isinstance(value, Sequence | set):
        return [sent(one) for one in value]
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
    """The first one where nothing is said."""
    text = request.query_params.get(name, "")
    if not text:
        return known[0]
    found = next((one for one in known if one == text), None)
    if found is None:
        raise UserError(f"{name}: {text[:40]!r} is none of {', '.join(known)}")
    return found


FIRST = (
    "eval/reward",
    "eval/accuracy",
    "reward",
    "accuracy",
    "eval/loss",
    "loss",
    "kl",
    "entropy",
    "completions/mean_length",
)
"""What one looks at first, as far as a run has it."""
TITLES = {
    "eval": "Held out",
    "": "Training",
    "completions": "Completions",
    "loss": "Losses",
    "clip_ratio": "Losses",
    "reward": "Reward, in parts",
    "grad_norm": "Optimizer",
    "learning_rate": "Optimizer",
}


@dataclass(frozen=True)
class Group:
    title: str
    names: tuple[str, ...]
    open: bool


def groups(names: Iterable[str]) -> list[Group]:
    """Each name once. A rubric's many figures are folded, a group for each category."""
    names = list(names)
    first = [name for name in FIRST if name in names]
    of_items = {
        key.category for prefix in (TRAINING_PREFIX, HELD_OUT_PREFIX, SECOND_PREFIX) for key in items_of(names, prefix)
    }
    by_title: dict[str, list[str]] = {}
    for name in names:
        if name not in first:
            by_title.setdefault(_title(name, of_items), []).append(name)
    rubric = [title for title in by_title if title.startswith("Rubric: ")]
    others = sorted((title for title in by_title if title not in rubric), key=_place)
    opened = [Group("Overview", tuple(first), True)] if first else []
    return [
        *opened,
        *(Group(title, tuple(by_title[title]), not opened) for title in others),
        *(Group(title, tuple(by_title[title]), False) for title in sorted(rubric)),
    ]


def _title(name: str, categories: set[str]) -> str:
    for prefix in (HELD_OUT_PREFIX, SECOND_PREFIX, TRAINING_PREFIX):
        if name.startswith(prefix) and name.removeprefix(prefix).split("/")[0] in categories:
            return f"Rubric: {name.removeprefix(prefix).split('/')[0]}"
    if name.startswith(CANARY_PREFIX):
        return "Canaries"
    head = name.split("/")[0]
    if "/" not in name and head not in TITLES:
        return TITLES[""]
    return TITLES.get(head, head)


def _place(title: str) -> tuple[int, str]:
    order: Sequence[str] = list(dict.fromkeys((TITLES["eval"], TITLES[""], *TITLES.values())))
    return (order.index(title) if title in order else len(order)), title
