"""Calls of a user's environment beside the sampling: functions in daemon threads, coroutines on the event loop."""

import asyncio
import inspect
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import CancelledError, Future, wait
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from vigneron.errors import first_line
from vigneron.threads import CallThreads, TookTooLong, TooManyHang, event_loop

SETTLE_S = 1.0
THREADS = 64
"""Calls of functions at a time, unless the config says how many."""


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
    """At most `concurrency` calls at a time, each of at most `timeout_s` seconds from its start. None: `THREADS`
    functions, and all coroutines, which take no thread."""

    def __init__(self, concurrency: int | None, timeout_s: float) -> None:
        self._concurrency, self._timeout_s = concurrency or math.inf, timeout_s
        self._threads = environment_threads(concurrency or THREADS)
        self._awaited: set[Future[Any]] = set()
        # Of the event loop's thread.
        self._queue: deque[tuple[Future[Any], Callable[[], Awaitable[Any]]]] = deque()
        self._running = 0

    def start(self, functions: Sequence[Callable[[], Any]]) -> list[Call]:
        """Call each of them; those of coroutines with one message to the event loop, since each wakes its thread."""
        coroutines: list[tuple[Future[Any], Callable[[], Awaitable[Any]]]] = []
        calls = []
        for function in functions:
            if not _is_async(function):
                calls.append(self._in_thread(function))
                continue
            # A call may have to wait for those before it, and one that blocks the event loop is late too.
            deadline = time.monotonic() + (1 + len(self._awaited) // self._concurrency) * self._timeout_s
            future: Future[Any] = Future()
            self._awaited.add(future)
            future.add_done_callback(self._awaited.discard)
            coroutines.append((future, function))
            calls.append(Call(future, partial(_wait_until, future, deadline), self._timeout_s))
        if coroutines:
            event_loop().call_soon_threadsafe(self._begin, coroutines)
        return calls

    def settle(self, calls: Sequence[Call]) -> None:
        """Wait until these have ended, though not long: to wait for each in turn wakes this thread for each."""
        wait([call.future for call in calls], timeout=min(SETTLE_S, self._timeout_s))

    def _in_thread(self, function: Callable[[], Any]) -> Call:
        try:
            call = self._threads.submit(lambda: self._called(function), self._timeout_s)
            return Call(call.result, call.wait, self._timeout_s)
        except TooManyHang as error:
            refused: Future[Any] = Future()
            refused.set_exception(CallFailed(f"was not called: {error}"))
            return Call(refused, refused.exception, self._timeout_s)

    def _called(self, function: Callable[[], Any]) -> Any:
        result = function()
        if inspect.isawaitable(result):  # of a callable that only looks like a function
            return asyncio.run_coroutine_threadsafe(within(lambda: result, self._timeout_s), event_loop()).result()
        return result

    def _begin(self, calls: Sequence[tuple[Future[Any], Callable[[], Awaitable[Any]]]] = ()) -> None:
        """On the event loop: begin as many of these and of the queue as may run."""
        self._queue.extend(calls)
        while self._queue and self._running < self._concurrency:
            future, function = self._queue.popleft()
            if future.set_running_or_notify_cancel():
                self._running += 1
                loop = asyncio.get_running_loop()
                task = loop.create_task(contained(function))
                timer = loop.call_later(self._timeout_s, self._give_up, future, task)
                task.add_done_callback(partial(self._end, future, timer))

    def _give_up(self, future: "Future[Any]", task: "asyncio.Task[Any]") -> None:
        """A call that is late is not waited for: it may not let itself be cancelled."""
        self._running -= 1
        future.set_exception(TookTooLong())
        task.cancel()
        self._begin()

    def _end(self, future: "Future[Any]", timer: asyncio.TimerHandle, task: "asyncio.Task[Any]") -> None:
        error = CallFailed("was cancelled") if task.cancelled() else task.exception()
        if future.done():  # it was given up
            return
        timer.cancel()
        self._running -= 1
        if error is None:
            future.set_result(task.result())
        else:
            future.set_exception(error)
        self._begin()


def _is_async(function: Callable[[], Any]) -> bool:
    """`inspect.iscoroutinefunction`, faster for one."""
    called = function.func if isinstance(function, partial) else function
    code = getattr(called, "__code__", None)
    return bool(code and code.co_flags & inspect.CO_COROUTINE) or inspect.iscoroutinefunction(function)


def _wait_until(future: "Future[Any]", deadline: float) -> BaseException | None:
    try:
        return future.exception(max(0.0, deadline - time.monotonic()))
    except TimeoutError:
        future.cancel()
        raise TookTooLong from None


async def contained(function: Callable[[], Awaitable[Any]]) -> Any:
    """Await a call. Raises what it raises, and `CallFailed` if it exits."""
    try:
        return await function()
    except (SystemExit, KeyboardInterrupt) as error:  # else they would end the event loop's thread
        raise CallFailed(f"called exit({getattr(error, 'code', '')})") from error


async def within(function: Callable[[], Awaitable[Any]], limit_s: float) -> Any:
    """Await a call for at most so long. Raises what it raises, `TookTooLong`, and `CallFailed` if it exits or is
    cancelled."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(contained(function))
    over: asyncio.Future[None] = loop.create_future()  # the task has ended, or its time has

    def end(*_: Any) -> None:
        if not over.done():
            over.set_result(None)

    task.add_done_callback(end)
    timer = loop.call_later(limit_s, end)
    # Not `wait_for`, which waits for a task that does not let itself be cancelled.
    try:
        await over
        if not task.done():
            raise TookTooLong
        if task.cancelled():
            raise CallFailed("was cancelled")
        return task.result()
    finally:
        timer.cancel()
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
