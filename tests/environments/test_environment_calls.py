"""Calls beside the sampling: as many at a time as are allowed, in their order, and one that is given up is not made."""

import asyncio
from contextlib import suppress
from functools import partial
from threading import Barrier, Event
from typing import Any

import pytest

from vigneron.environments.calls import THREADS, CallFailed, Calls, within
from vigneron.threads import TookTooLong, event_loop

LONG_S = 60.0


def test_as_many_run_at_a_time_as_are_allowed_and_in_their_order() -> None:
    running: list[int] = []
    most: list[int] = []
    order: list[int] = []

    async def call(number: int) -> int:
        running.append(number)
        order.append(number)
        most.append(len(running))
        await asyncio.sleep(0)
        running.remove(number)
        return number * number

    calls = Calls(3, LONG_S)
    started = calls.start([partial(call, n) for n in range(6)]) + calls.start([partial(call, n) for n in (6, 7)])
    assert [each.result() for each in started] == [n * n for n in range(8)]
    assert max(most) == 3
    assert order == list(range(8))


def test_without_a_number_all_coroutines_run_at_once_and_64_functions() -> None:
    """None ends before so many have begun, which they do not do if there are fewer at a time."""
    begun: list[int] = []
    all_begun, threads = asyncio.Event(), Barrier(THREADS)

    async def call(number: int) -> int:
        begun.append(number)
        if len(begun) == 10 * THREADS:
            all_begun.set()
        await all_begun.wait()
        return number

    calls = Calls(None, LONG_S)
    assert [each.result() for each in calls.start([partial(call, n) for n in range(10 * THREADS)])] == begun
    places = [each.result() for each in calls.start([threads.wait] * (2 * THREADS))]
    assert sorted(places) == sorted([*range(THREADS)] * 2)


def test_functions_coroutines_and_faults_each_have_their_result() -> None:
    async def raises() -> None:
        raise KeyError("rose")

    async def leaves() -> None:
        raise SystemExit(3)

    async def forty() -> int:
        return 40

    async def cancels() -> None:
        raise asyncio.CancelledError

    functions: list[Any] = [raises, lambda: 2, forty, leaves, cancels, lambda: forty()]
    results: list[Any] = []
    for call in Calls(2, LONG_S).start(functions):
        try:
            results.append(call.result())
        except CallFailed as error:
            results.append(str(error).partition(" (")[0])
    assert results == ["raised KeyError: 'rose'", 2, 40, "called exit(3)", "was cancelled", 40]


def test_what_waits_behind_a_blocked_loop_is_given_up_and_never_called() -> None:
    release, called = Event(), []

    async def blocks() -> None:
        release.wait()

    async def never() -> None:
        called.append(True)

    calls = Calls(1, 0.01)
    try:
        for call in calls.start([blocks, never]):
            with pytest.raises(CallFailed, match=r"took longer than 0\.01 s"):
                call.result()
    finally:
        release.set()
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), event_loop()).result()
    assert not called


def test_a_coroutine_that_does_not_let_itself_be_cancelled_is_left() -> None:
    async def late() -> str:
        release, ended = asyncio.Event(), asyncio.Event()

        async def stubborn() -> None:
            while not release.is_set():
                with suppress(asyncio.CancelledError):
                    await release.wait()
            ended.set()

        try:
            await within(stubborn, 0.0)
        except TookTooLong:
            return "late"
        finally:
            release.set()
            await ended.wait()
        return "in time"

    assert asyncio.run_coroutine_threadsafe(late(), event_loop()).result() == "late"


def test_a_late_call_is_not_waited_for_and_the_next_is_made() -> None:
    release = asyncio.Event()

    async def stubborn() -> None:
        while not release.is_set():
            with suppress(asyncio.CancelledError):
                await release.wait()

    async def forty() -> int:
        return 40

    calls = Calls(1, 0.01)
    (late,) = calls.start([stubborn])
    with pytest.raises(CallFailed, match=r"took longer than 0\.01 s"):
        late.result()
    calls._timeout_s = LONG_S
    (next_call,) = calls.start([forty])
    calls.settle([late, next_call])
    assert next_call.result() == 40
    event_loop().call_soon_threadsafe(release.set)
