"""The edge to a reward of somebody's own: it may raise, exit, wait, or return anything."""

import asyncio
import inspect
import math
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from threading import Thread
from typing import Any

from vigneron.errors import NonFinite, UserError


class RewardFailed(UserError):
    """A reward raised, or returned something that is not a list of numbers."""


class NonFiniteReward(RewardFailed, NonFinite):
    """A reward returned NaN or an infinity."""


def is_asynchronous(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def begun(result: Any) -> Any:
    """What a reward returned, or a future of what it waits for."""
    if inspect.isawaitable(result):
        return asyncio.run_coroutine_threadsafe(_awaited(result), _event_loop())
    return result


def guarded(name: str, step: Callable[[], Any]) -> Any:
    """The step's result. What it raises is an error of the user's, in one line that says where."""
    try:
        return step()
    except UserError:
        raise
    except SystemExit as error:
        raise RewardFailed(f"{name} called exit({error.code})") from error
    except Exception as error:  # the edge to the user's own code: name it, keep the cause for --debug
        at = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(at.filename).name}, line {at.lineno}"
        raise RewardFailed(f"{name} raised {type(error).__name__}: {error} ({where})") from error


def numbers(name: str, result: Any, count: int) -> list[float | None]:
    """What a reward returned, checked: a finite number for each completion, or None."""
    try:
        values = list(result)
    except TypeError as error:
        raise RewardFailed(f"{name} returned {result!r}, not a list of numbers") from error
    if len(values) != count:
        raise RewardFailed(f"{name} returned {len(values)} values for {count} completions")
    return [None if value is None else _finite(name, value, row) for row, value in enumerate(values, start=1)]


def _finite(name: str, value: Any, row: int) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise RewardFailed(f"{name} returned {value!r} for row {row}; a missing reward is None, not NaN") from error
    if not math.isfinite(number):
        raise NonFiniteReward(f"{name} returned {value!r} for row {row}; a missing reward is None, not NaN")
    return number


async def _awaited(awaitable: Any) -> Any:
    try:
        return await awaitable
    except SystemExit as error:  # let through, it would end the thread that all rewards wait for
        raise RuntimeError(f"exit({error.code})") from error


@cache
def _event_loop() -> asyncio.AbstractEventLoop:
    """One for all asynchronous rewards, in a thread of its own: clients and semaphores belong to one loop."""
    loop = asyncio.new_event_loop()
    Thread(target=loop.run_forever, name="rewards", daemon=True).start()
    return loop
