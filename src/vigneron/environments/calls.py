"""Calls of a user's environment beside the sampling: functions in daemon threads, coroutines on the event loop."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from vigneron.errors import first_line
from vigneron.threads import CallThreads, TookTooLong, TooManyHang, event_loop


class CallFailed(Exception):
    """A call that raised, exited or took too long; the text says which."""


@dataclass(frozen=True)
class Call:
    """A call that is under way. `wait` returns what it raised, or raises `TookTooLong`."""

    future: "Future[Any]"
    wait: Callable[[], BaseException | None]
    limit_s: float

    def result(self) -> Any:
        """Waits for it; raises `CallFailed`."""
        try:
            error = self.wait()
        except TookTooLong as late:
            error = late
        except CancelledError:
            raise CallFailed("was cancelled") from None
        if isinstance(error, TookTooLong):
            raise CallFailed(f"took longer than {self.limit_s:g} s") from None
        if isinstance(error, CallFailed):
            raise error
        if isinstance(error, SystemExit):
            raise CallFailed(f"called exit({error.code})") from error
        if error is not None:
            raise CallFailed(raised(error)) from error
        return self.future.result()


@cache
def environment_threads(concurrency: int) -> CallThreads:
    """Shared by all steps, so that a call that hangs holds up those of no later step."""
    return CallThreads(concurrency, "environment")


class Calls:
    """At most `concurrency` calls at a time, each of at most `timeout_s` seconds from its start."""

    def __init__(self, concurrency: int, timeout_s: float) -> None:
        self._concurrency, self._timeout_s = concurrency, timeout_s
        self._threads = environment_threads(concurrency)
        self._free = asyncio.Semaphore(concurrency)
        self._awaited: set[Future[Any]] = set()

    def start(self, function: Callable[..., Any], *arguments: Any) -> Call:
        if inspect.iscoroutinefunction(function):
            # A call may have to wait for those before it, and one that blocks the event loop is late too.
            deadline = time.monotonic() + (1 + len(self._awaited) // self._concurrency) * self._timeout_s
            future = asyncio.run_coroutine_threadsafe(self._in_turn(function, *arguments), event_loop())
            self._awaited.add(future)
            future.add_done_callback(self._awaited.discard)
            return Call(future, partial(_wait_until, future, deadline), self._timeout_s)
        try:
            call = self._threads.submit(lambda: self._called(function, *arguments), self._timeout_s)
            return Call(call.result, call.wait, self._timeout_s)
        except TooManyHang as error:
            refused: Future[Any] = Future()
            refused.set_exception(CallFailed(f"was not called: {error}"))
            return Call(refused, refused.exception, self._timeout_s)

    async def _in_turn(self, function: Callable[..., Any], *arguments: Any) -> Any:
        async with self._free:
            return await within(lambda: function(*arguments), self._timeout_s)

    def _called(self, function: Callable[..., Any], *arguments: Any) -> Any:
        result = function(*arguments)
        if inspect.isawaitable(result):  # of a callable that only looks like a function
            return asyncio.run_coroutine_threadsafe(within(lambda: result, self._timeout_s), event_loop()).result()
        return result


def _wait_until(future: "Future[Any]", deadline: float) -> BaseException | None:
    try:
        return future.exception(max(0.0, deadline - time.monotonic()))
    except TimeoutError:
        future.cancel()
        raise TookTooLong from None


async def within(function: Callable[[], Awaitable[Any]], limit_s: float) -> Any:
    """Await a call for at most so long. Raises what it raises, `TookTooLong`, and `CallFailed` if it exits or is
    cancelled."""

    async def contained() -> Any:
        try:
            return await function()
        except (SystemExit, KeyboardInterrupt) as error:  # else they would end the event loop's thread
            raise CallFailed(f"called exit({getattr(error, 'code', '')})") from error

    task = asyncio.ensure_future(contained())
    # Not `wait_for`, which waits for a task that does not let itself be cancelled.
    try:
        done, _ = await asyncio.wait({task}, timeout=limit_s)
        if not done:
            raise TookTooLong
        if task.cancelled():
            raise CallFailed("was cancelled")
        return task.result()
    finally:
        task.cancel()
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())


def raised(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = (
        "" if trace is None else f" ({trace.tb_frame.f_code.co_filename.rpartition('/')[2]}, line {trace.tb_lineno})"
    )
    try:
        text = first_line(error)
    except Exception:  # its own text fails
        text = "?"
    return f"raised {type(error).__name__}: {text}{where}"
