"""A thread pool of daemon threads, for calls that may hang: an endpoint, a sandbox.

Python joins the threads of a `ThreadPoolExecutor` before it exits, however long an endpoint takes to answer, and
closing a socket does not wake a thread that reads from it. Daemon threads do not block the exit: a caller that needs
the results waits for the futures, and a second Ctrl-C ends that wait and the process.
"""

import weakref
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
Task = tuple[Future[Any], Callable[[], Any]]


class DaemonPool:
    """At most `workers` daemon threads. They end with the process, on `stop`, or when the pool is garbage-collected."""

    def __init__(self, workers: int, name: str) -> None:
        self._max_workers, self._name = workers, name
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
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
            self._tasks.put((future, lambda: function(*args, **kwargs)))
            if self._started < self._max_workers:
                self._started += 1
                name = f"{self._name}-{self._started}"
                Thread(target=_run_tasks, args=(self._tasks,), name=name, daemon=True).start()
        return future

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
