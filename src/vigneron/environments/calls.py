"""Calls of a user's environment beside the sampling: functions in daemon threads, coroutines on the event loop."""

import asyncio
import inspect
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Any

from vigneron.errors import first_line
from vigneron.threads import DaemonPool, event_loop


class CallFailed(Exception):
    """A call that raised, exited or took too long; the text says which."""


class Calls:
    """At most `concurrency` calls at a time, each of at most `timeout_s` seconds."""

    def __init__(self, concurrency: int, timeout_s: float) -> None:
        self._concurrency, self._timeout_s = concurrency, timeout_s
        self._pool = DaemonPool(concurrency, "environment")
        self._free = asyncio.Semaphore(concurrency)
        self._waiting = 0

    def start(self, function: Callable[..., Any], *arguments: Any) -> "Call":
        # A call may have to wait for those before it.
        rounds = 1 + self._waiting // self._concurrency
        self._waiting += 1
        if inspect.iscoroutinefunction(function):
            future = asyncio.run_coroutine_threadsafe(self._awaited(function, *arguments), event_loop())
        else:
            future = self._pool.submit(self._called, function, *arguments)
        return Call(self, future, time.monotonic() + rounds * self._timeout_s)

    def result(self, call: "Call") -> Any:
        """Waits for it; raises `CallFailed`."""
        self._waiting -= 1
        try:
            error = call.future.exception(max(0.0, call.deadline - time.monotonic()))
        except CancelledError:
            raise CallFailed("was cancelled") from None
        except TimeoutError:
            call.future.cancel()
            raise CallFailed(f"took longer than {self._timeout_s:g} s") from None
        if isinstance(error, TimeoutError) and not str(error):
            raise CallFailed(f"took longer than {self._timeout_s:g} s") from None
        if isinstance(error, SystemExit):
            raise CallFailed(f"called exit({error.code})") from error
        if error is not None:
            raise CallFailed(raised(error)) from error
        return call.future.result()

    def _called(self, function: Callable[..., Any], *arguments: Any) -> Any:
        result = function(*arguments)
        if inspect.isawaitable(result):  # of a callable that only looks like a function
            return asyncio.run_coroutine_threadsafe(_contained(result), event_loop()).result(self._timeout_s)
        return result

    async def _awaited(self, function: Callable[..., Any], *arguments: Any) -> Any:
        async with self._free:
            return await asyncio.wait_for(_contained(function(*arguments)), self._timeout_s)


class Call:
    def __init__(self, calls: Calls, future: "Future[Any]", deadline: float) -> None:
        self.calls, self.future, self.deadline = calls, future, deadline

    def result(self) -> Any:
        return self.calls.result(self)


async def _contained(awaitable: Any) -> Any:
    try:
        return await awaitable
    except (SystemExit, KeyboardInterrupt) as error:  # else they would end the event loop's thread
        raise RuntimeError(f"called exit({getattr(error, 'code', '')})") from error


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
