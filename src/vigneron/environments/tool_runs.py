"""Run one call of a tool under a limit of time, and write its result as a text of limited size."""

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable
from typing import Any

from vigneron.environments.calls import CallFailed, within
from vigneron.environments.reply import plain_number
from vigneron.errors import first_line, visible
from vigneron.threads import CallThreads, TookTooLong

LONGEST_ERROR = 500


class ToolFailure(Exception):
    """A call that gave no result; the text is what the model reads."""


async def run_tool(
    function: Callable[..., Any], arguments: dict[str, Any], threads: CallThreads, limit_s: float
) -> str:
    """The result as a text. A sync function runs in a daemon thread, where the limit counts from its start; an async
    one is awaited here, and must not block. Raises what the function raises, and `ToolFailure`."""
    if inspect.iscoroutinefunction(function):
        result = await _awaited(lambda: function(**arguments), limit_s)
    else:
        result = await _in_thread(lambda: _called(function, arguments), threads, limit_s)
    if inspect.isawaitable(result):
        pending = result
        result = await _awaited(lambda: pending, limit_s)
    return as_text(result)


async def value_of(function: Callable[[], Any], threads: CallThreads, limit_s: float) -> Any:
    """What a function returns, under the same limit, not as a text."""
    if inspect.iscoroutinefunction(function):
        return await _awaited(function, limit_s)
    return await _in_thread(function, threads, limit_s)


def _called(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """In the thread: the result as a text, whose writing takes time too, or what is to be awaited."""
    try:
        result = function(**arguments)
    except Exception:  # `ToolEnvironment` tells the model
        raise
    except BaseException as error:  # `SystemExit`: it ends the tool, and not the run
        raise ToolFailure(f"{type(error).__name__}: {one_line(error)}") from None
    return result if inspect.isawaitable(result) else as_text(result)


def as_text(result: Any) -> str:
    """A text as it is, anything else as JSON."""
    if not isinstance(result, str):
        try:
            result = json.dumps(result, ensure_ascii=False, allow_nan=False, default=plain_number)
        except Exception as error:  # the result's own methods may raise anything
            kind = type(result).__name__
            raise ToolFailure(f"the result, of type {kind}, cannot be written as JSON: {one_line(error)}") from None
    # Half of a surrogate pair cannot be tokenised.
    return result if result.isascii() else str(result.encode("utf-8", "replace"), "utf-8")


def cut(text: str, most: int) -> str:
    """A text of at most `most` characters: the beginning and the end, with a mark that says how much was cut."""
    if len(text) <= most:
        return text
    kept = most - len(_cut_mark(len(text)))
    if kept <= 0:
        return text[:most]
    return f"{text[: kept - kept // 2]}{_cut_mark(len(text) - kept)}{text[len(text) - kept // 2 :]}"


def _cut_mark(characters: int) -> str:
    return f"\n[… {characters:,} characters cut …]\n"


def one_line(error: BaseException) -> str:
    line = visible(first_line(error))
    return line if len(line) <= LONGEST_ERROR else f"{line[:LONGEST_ERROR]}…"


async def _in_thread(function: Callable[[], Any], threads: CallThreads, limit_s: float) -> Any:
    call = threads.submit(function)
    result = asyncio.wrap_future(call.result)
    try:
        if not call.started.done():
            await asyncio.wrap_future(call.started)
        done, _ = await asyncio.wait({result}, timeout=limit_s)
        if not done:
            raise ToolFailure(f"it did not end within {limit_s:g} s")
        return result.result()
    finally:
        call.give_up()
        result.cancel()


async def _awaited(function: Callable[[], Awaitable[Any]], limit_s: float) -> Any:
    async def guarded() -> Any:
        try:
            return await function()
        except SystemExit as error:  # a task would end the loop with it
            raise ToolFailure(f"SystemExit: {one_line(error)}") from None

    try:
        return await within(guarded, limit_s)
    except TookTooLong:
        raise ToolFailure(f"it did not end within {limit_s:g} s") from None
    except CallFailed as error:
        raise ToolFailure(f"it {error}") from None
