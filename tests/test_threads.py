"""The pool of daemon threads: how many work, what is told, and that nobody waits for them."""

import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError, wait
from threading import Event

import pytest

from vigneron.threads import DaemonPool


def test_results_and_what_is_raised_come_through_and_no_more_threads_work_than_were_asked_for() -> None:
    pool = DaemonPool(3, "vine")
    names: set[str] = set()
    three = threading.Barrier(3, timeout=600)

    def work(n: int) -> float:
        names.add(threading.current_thread().name)
        if n in (1, 2, 3):  # the first of them
            three.wait()
        return 12 / n

    futures = [pool.submit(work, n) for n in (1, 2, 3, 4, 0, 6, 8, 12)]
    assert [future.result() for future in futures if future is not futures[4]] == [12, 6, 4, 3, 2, 1.5, 1]
    with pytest.raises(ZeroDivisionError):
        futures[4].result()
    assert names == {"vine-1", "vine-2", "vine-3"}


def test_stopped_it_ends_what_runs_cancels_what_waits_and_takes_no_more() -> None:
    pool, begun, go_on = DaemonPool(1, "stopped"), Event(), Event()

    def work() -> str:
        begun.set()
        go_on.wait()
        return "done"

    first, *others = (pool.submit(work) for _ in range(4))
    others[0].cancel()
    begun.wait()
    pool.stop()
    assert wait(others, timeout=60).not_done == set()
    with pytest.raises(CancelledError):
        others[-1].result()
    with pytest.raises(RuntimeError, match="stopped"):
        pool.submit(work)
    go_on.set()
    assert first.result(60) == "done"
    assert_no_thread("stopped")


def test_let_go_of_it_does_what_it_was_given_and_its_threads_end() -> None:
    pool = DaemonPool(4, "forgotten")
    futures = [pool.submit(pow, 2, n) for n in range(8)]
    del pool
    assert [future.result(60) for future in futures] == [2**n for n in range(8)]
    assert_no_thread("forgotten")


def assert_no_thread(name: str) -> None:
    until = time.monotonic() + 600
    while left := [each for each in threading.enumerate() if each.name.startswith(name)]:
        assert time.monotonic() < until, left
        time.sleep(0.01)


def test_the_process_ends_without_them() -> None:
    program = "import time; from vigneron.threads import DaemonPool; DaemonPool(2, 'x').submit(time.sleep, 3600)"
    subprocess.run([sys.executable, "-c", program], timeout=600, check=True)
