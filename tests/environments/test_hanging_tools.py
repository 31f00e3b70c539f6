"""Tools that hang: each is given up at its limit, and holds up no others."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from support.tool_turns import ROW, add, answer, contents
from vigneron.environments.reply import Reply
from vigneron.environments.tool_calls import FORMATS
from vigneron.environments.tool_runs import run_tool
from vigneron.environments.tool_schema import tool_schema
from vigneron.environments.tools import Tool, ToolEnvironment
from vigneron.threads import CallThreads, TooManyHang


@pytest.fixture
def released() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_a_tool_that_hangs_is_given_up(released: threading.Event) -> None:
    def hang() -> str:
        """Hang."""
        released.wait()
        return "late"

    async def hang_later() -> str:
        """Hang, whatever is done."""
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                if released.is_set():
                    raise

    limited = [(hang, 0.05), (hang_later, 0.05), (add, 60)]
    tools = {function.__name__: Tool(tool_schema(function), function, limit_s=limit) for function, limit in limited}
    environment = ToolEnvironment(ROW, 0, tools=tools, format=FORMATS[-1][0])
    raw = "[hang(), hang_later(), add(a=1)]"

    async def reply() -> Reply:
        try:
            return await environment.reply([environment.read_turn(raw, raw)])
        finally:
            released.set()  # for the loop's end, which cancels again

    found = asyncio.run(reply())
    late = "error: it did not end within 0.05 s"
    assert contents(found) == [late, late, "2"]
    assert found.log == {"tool_calls": 3, "tool_errors": 2}


def test_hanging_calls_hold_up_no_others(released: threading.Event) -> None:
    """Two threads, both hanging: the third call starts where one was given up."""
    threads = CallThreads(2, "test")

    def hang() -> str:
        """Hang."""
        released.wait()
        return ""

    tools = {
        "hang": Tool(tool_schema(hang), hang, limit_s=0.05, threads=threads),
        "add": Tool(tool_schema(add), add, limit_s=60, threads=threads),
    }
    environment = ToolEnvironment(ROW, 0, tools=tools, format=FORMATS[-1][0])
    found = answer(environment, "[hang(), hang(), add(a=1)]")
    assert contents(found)[2] == "2"


def test_the_limit_counts_from_the_start_of_a_call(released: threading.Event) -> None:
    """The only thread is taken: while a call waits for it, no timer runs."""
    threads = CallThreads(1, "test")
    running = threading.Event()

    def hang() -> str:
        """Hang."""
        running.set()
        released.wait()
        return "late"

    first = threads.submit(released.wait)

    async def timers() -> tuple[int, int, str]:
        loop: Any = asyncio.get_running_loop()
        task = asyncio.ensure_future(run_tool(hang, {}, threads, limit_s=600))
        for _ in range(10):
            await asyncio.sleep(0)
        before = len(loop._scheduled)
        first.give_up()
        while not (running.is_set() and loop._scheduled):
            await asyncio.sleep(0)
        after = len(loop._scheduled)
        released.set()
        return before, after, await task

    assert asyncio.run(timers()) == (0, 1, "late")


def test_after_too_many_hanging_calls_none_is_started(released: threading.Event) -> None:
    threads = CallThreads(1, "test", most_hanging=2)
    ended = threading.Event()
    for _ in range(2):
        given_up = threads.submit(released.wait)
        given_up.give_up()
        given_up.give_up()  # counts once
    with pytest.raises(TooManyHang, match="2 earlier calls have not ended"):
        threads.submit(ended.set)
    tools = {"add": Tool(tool_schema(add), add, threads=threads)}
    environment = ToolEnvironment(ROW, 0, tools=tools, format=FORMATS[-1][0])
    assert contents(answer(environment, "[add(a=1)]")) == ["error: not run: 2 earlier calls have not ended"]
    released.set()
    while threads._hanging:
        given_up.result.result(timeout=60)
    threads.submit(ended.set).result.result(timeout=60)
    assert ended.is_set()


def test_a_call_that_was_given_up_before_it_started_is_not_made(released: threading.Event) -> None:
    threads, made = CallThreads(1, "test"), []
    first = threads.submit(released.wait)
    second = threads.submit(lambda: made.append(1))
    second.give_up()
    released.set()
    first.result.result(timeout=60)
    threads.submit(lambda: None).result.result(timeout=60)
    assert made == []


def test_a_cancelled_reply_gives_its_calls_up(released: threading.Event) -> None:
    threads = CallThreads(1, "test")
    started = threading.Event()

    def hang() -> str:
        """Hang."""
        started.set()
        released.wait()
        return ""

    tools = {"hang": Tool(tool_schema(hang), hang, limit_s=600, threads=threads)}
    environment = ToolEnvironment(ROW, 0, tools=tools, format=FORMATS[-1][0])

    async def cancelled() -> None:
        task = asyncio.ensure_future(environment.reply([environment.read_turn("[hang()]", "")]))
        await asyncio.to_thread(started.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert threads.submit(lambda: "next").result.result(timeout=60) == "next"
