"""Threads that wait for somebody else: an endpoint that may hang, a sandbox.

Python joins the threads of a `ThreadPoolExecutor` before it exits, however long an endpoint takes to answer; and a
socket that another thread closes does not wake the one that reads from it. So these are daemon threads: who wants what
is under way to come to its end waits for its futures, and a second Ctrl-C ends that wait and the process.
"""

import weakref
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, ParamSpec, TypeVar

Given = ParamSpec("Given")
Found = TypeVar("Found")
Task = tuple[Future[Any], Callable[[], Any]]


class DaemonPool:
    """At most `workers` threads, which end with the process, when they are stopped, or when nobody holds the pool."""

    def __init__(self, workers: int, name: str) -> None:
        self._most, self._name = workers, name
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._lock = Lock()
        self._started = 0
        self._stopped = False
        weakref.finalize(self, self._tasks.put, None).atexit = False

    def submit(self, work: Callable[Given, Found], *given: Given.args, **named: Given.kwargs) -> Future[Found]:
        """A `RuntimeError` once the pool is stopped."""
        future: Future[Found] = Future()
        with self._lock:
            if self._stopped:
                raise RuntimeError("the pool is stopped")
            self._tasks.put((future, lambda: work(*given, **named)))
            if self._started < self._most:
                self._started += 1
                name = f"{self._name}-{self._started}"
                Thread(target=_work_off, args=(self._tasks,), name=name, daemon=True).start()
        return future

    def stop(self) -> None:
        """What runs goes on to its end; what waits is cancelled. Waits for nothing."""
        with self._lock:
            self._stopped = True
            try:
                while True:
                    if (task := self._tasks.get_nowait()) is not None:
                        task[0].cancel()
                        task[0].set_running_or_notify_cancel()
            except Empty:
                self._tasks.put(None)


def _work_off(tasks: "SimpleQueue[Task | None]") -> None:
    """Holds the queue and not the pool, which can be let go of meanwhile."""
    while (task := tasks.get()) is not None:
        future, work = task
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(work())
            except BaseException as error:  # whatever it is, who waits for the future is told
                future.set_exception(error)
        del task, future, work
    tasks.put(None)  # for the next thread
