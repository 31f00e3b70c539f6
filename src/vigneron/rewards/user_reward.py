"""Calling a user's reward function, which may raise, exit, be asynchronous, or return anything."""

import asyncio
import inspect
import math
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vigneron.errors import NonFinite, UserError
from vigneron.threads import event_loop
from vigneron.values import LARGEST_FLOAT32


class RewardFailed(UserError):
    """A reward raised, or returned something that is not a list of numbers."""


class NonFiniteReward(RewardFailed, NonFinite):
    """A reward returned NaN or an infinity."""


def is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def started(result: Any) -> Any:
    """A reward's result as it is, or a future of it if it is awaitable."""
    if inspect.isawaitable(result):
        return asyncio.run_coroutine_threadsafe(_awaited(result), event_loop())
    return result


def named_errors(name: str, step: Callable[[], Any]) -> Any:
    """The step's result. An exception becomes a `RewardFailed`: one line with the reward's name and the place."""
    try:
        return step()
    except UserError:
        raise
    except SystemExit as error:
        raise RewardFailed(f"{name} called exit({error.code})") from error
    except Exception as error:  # user code: name it, keep the cause for --debug
        at = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(at.filename).name}, line {at.lineno}"
        raise RewardFailed(f"{name} raised {type(error).__name__}: {error} ({where})") from error


def checked_rewards(name: str, result: Any, count: int) -> list[float | None]:
    """The returned rewards: a finite number or None for each completion. A number that float32 cannot hold is None."""
    if isinstance(result, str | bytes):
        raise RewardFailed(f"{name} returned the text {result!r:.80}, not a list of numbers")
    try:
        values = list(result)
    except TypeError as error:
        raise RewardFailed(f"{name} returned {result!r}, not a list of numbers") from error
    if len(values) != count:
        raise RewardFailed(f"{name} returned {len(values)} values for {count} completions")
    return [None if value is None else _finite(name, value, row) for row, value in enumerate(values, start=1)]


def _finite(name: str, value: Any, row: int) -> float | None:
    try:
        number = float(value)
    except OverflowError:  # an int such as 10**400
        return None
    except (TypeError, ValueError) as error:
        kind = "the text " if isinstance(value, str | bytes) else ""
        raise RewardFailed(
            f"{name} returned {kind}{value!r:.80} for row {row}; expected a number, or None if it is missing"
        ) from error
    if not math.isfinite(number):
        raise NonFiniteReward(f"{name} returned {value!r} for row {row}; a missing reward is None, not NaN")
    return number if abs(number) <= LARGEST_FLOAT32 else None


async def _awaited(awaitable: Any) -> Any:
    try:
        return await awaitable
    except SystemExit as error:  # else it would end the event loop's thread
        raise RuntimeError(f"exit({error.code})") from error
