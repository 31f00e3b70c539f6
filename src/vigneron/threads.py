"""Daemon threads, for calls that may hang: an endpoint, a sandbox, a user's tool; and one event loop.

Python joins the threads of a `ThreadPoolExecutor` before it exits, however long an endpoint takes to answer, and
closing a socket does not wake a thread that reads from it. Daemon threads do not block the exit: a caller that needs
the results waits for the futures, and a second Ctrl-C ends that wait and the process.
"""

import asyncio
import math
import os
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
Task = tuple[Future[Any], Callable[[], Any]]


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def event_loop() -> asyncio.AbstractEventLoop:
    """One event loop in one thread for all asynchronous user code: clients and semaphores belong to a loop."""
    loop = asyncio.new_event_loop()
    Thread(target=loop.run_forever, name="async", daemon=True).start()
    return loop


class DaemonPool:
    """At most `workers` daemon threads. They end with the process, on `stop`, or when the pool is garbage-collected."""

    def __init__(self, workers: int, name: str) -> None:
        self._max_workers, self._name = workers, name
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._futures: weakref.WeakSet[Future[Any]] = weakref.WeakSet()
        self._lock = Lock()
        self._started = 0
        self._stopped = False
        weakref.finalize(self, self._tasks.put, None).atexit = False

    def submit(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Schedule a call. Raises `RuntimeError` if the pool is stopped."""
        future: Future[R] = Future()
        with self._lock:
            if self._stopped:
                raise RuntimeError("the pool is stopped")
            self._futures.add(future)
            self._tasks.put((future, lambda: function(*args, **kwargs)))
            if self._started < self._max_workers:
                self._started += 1
                name = f"{self._name}-{self._started}"
                Thread(target=_run_tasks, args=(self._tasks,), name=name, daemon=True).start()
        return future

    def unfinished(self) -> set[Future[Any]]:
        """The calls that have not ended; after `stop` those that a thread has taken."""
        return {future for future in self._futures if not future.done()}

    def stop(self) -> None:
        """Cancel queued calls; let running calls finish. Does not block."""
        with self._lock:
            self._stopped = True
            try:
                while True:
                    if (task := self._tasks.get_nowait()) is not None:
                        task[0].cancel()
                        task[0].set_running_or_notify_cancel()
            except Empty:
                self._tasks.put(None)


def _run_tasks(tasks: "SimpleQueue[Task | None]") -> None:
    """Refers to the queue and not to the pool, so that the pool can be garbage-collected."""
    while (task := tasks.get()) is not None:
        future, call = task
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(call())
            except BaseException as error:  # any error is raised in the thread that waits for the future
                future.set_exception(error)
        del task, future, call
    tasks.put(None)  # for the next thread


class TooManyHang(Exception):
    """So many calls that were given up have not ended that no more are started."""


class TookTooLong(Exception):
    """A call that has not ended within its limit."""


class ThreadCall:
    """A call in a thread: `started` and `result` tell how far it is. It is late `limit_s` seconds after its start."""

    def __init__(self, threads: "CallThreads", function: Callable[[], Any], limit_s: float) -> None:
        self._threads, self.function, self.limit_s = threads, function, limit_s
        self.started: Future[None] = Future()
        self.result: Future[Any] = Future()
        self.given_up = False
        self.deadline = math.inf

    def give_up(self) -> None:
        """Wait for it no longer: another call may start in its place. No effect if it has ended."""
        self._threads.give_up(self)

    def wait(self) -> BaseException | None:
        """Wait until it has ended, and return what it raised. Raises `TookTooLong` if it is given up; so are calls
        before it that are late, in whose place it may have to start."""
        while True:
            next_late_s = self._threads.give_up_late()
            if self.given_up:
                raise TookTooLong
            try:
                return self.result.exception(next_late_s)
            except TimeoutError:
                continue


class CallThreads:
    """At most `most` calls at a time, in daemon threads. A thread that hangs cannot be ended; it holds up no other
    call once it is given up."""

    def __init__(self, most: int, name: str, most_hanging: int = 1000) -> None:
        self._most, self._name, self._most_hanging = most, name, most_hanging
        self._lock = Lock()
        self._waiting: deque[ThreadCall] = deque()
        self._running: set[ThreadCall] = set()
        self._hanging = 0
        self._idle: list[SimpleQueue[ThreadCall]] = []
        """Of each thread that has nothing to do: where it waits for a call."""

    def submit(self, function: Callable[[], Any], limit_s: float = math.inf) -> ThreadCall:
        """Raises `TooManyHang`."""
        call = ThreadCall(self, function, limit_s)
        with self._lock:
            if self._hanging >= self._most_hanging:
                raise TooManyHang(f"{self._hanging} earlier calls have not ended")
            self._waiting.append(call)
            self._start()
        return call

    def give_up(self, call: ThreadCall) -> None:
        with self._lock:
            if call in self._running:
                self._running.remove(call)
                call.given_up = True
                self._hanging += 1
            elif call in self._waiting:
                self._waiting.remove(call)
            self._start()

    def give_up_late(self) -> float | None:
        """Give up the calls that are late; returns the seconds until another one is, None if none has a limit."""
        now = time.monotonic()
        with self._lock:
            late = [call for call in self._running if call.deadline <= now]
        for call in late:
            call.give_up()
        with self._lock:
            next_deadline = min((call.deadline for call in self._running), default=math.inf)
        return None if next_deadline == math.inf else max(0.0, next_deadline - now)

    def _start(self) -> None:
        """With the lock."""
        while self._waiting and len(self._running) < self._most:
            call = self._waiting.popleft()
            self._running.add(call)
            call.deadline = time.monotonic() + call.limit_s
            call.result.set_running_or_notify_cancel()
            if call.started.set_running_or_notify_cancel():
                call.started.set_result(None)
            if self._idle:
                self._idle.pop().put(call)
                continue
            try:
                Thread(target=self._work, args=(call,), name=self._name, daemon=True).start()
            except RuntimeError as error:  # the system has no more threads
                self._running.discard(call)
                call.result.set_exception(error)

    def _work(self, call: ThreadCall) -> None:
        """A thread: its first call, then others."""
        own: SimpleQueue[ThreadCall] = SimpleQueue()
        while True:
            value, error = None, None
            try:
                value = call.function()
            except BaseException as raised:  # `SystemExit` too: it is raised in the thread that waits
                error = raised
            with self._lock:
                self._running.discard(call)
                self._hanging -= call.given_up
                self._idle.append(own)
                self._start()
            if not call.result.cancelled():
                call.result.set_exception(error) if error is not None else call.result.set_result(value)
            del call, value, error
            call = own.get()
