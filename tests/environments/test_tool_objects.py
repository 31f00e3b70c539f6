"""Classes of tools in the form of TRL's `environment_factory`: `reset` before, `get_reward` after."""

import asyncio
import threading
from typing import Any

import pytest

from support.tool_turns import QWEN, answer, call, contents
from vigneron.environments.reply import BadReply
from vigneron.environments.tools import ToolEnvironment, tool_environment


class Counter:
    """TRL's example in small: the model adds to a number, and earns what is there at the end."""

    def reset(self, start: int, **columns: Any) -> None:
        self.number = start

    def add(self, n: int) -> int:
        """Add to the number.

        Args:
            n: How much.
        """
        self.number += n
        return self.number

    def get_reward(self) -> Any:
        return self.number / 10


class AsyncCounter(Counter):
    async def get_reward(self) -> float:
        await asyncio.sleep(0)
        return self.number / 10


ROW = {"prompt": "Count to ten.", "start": 3}


def environment(owner: type, **limits: Any) -> ToolEnvironment:
    return tool_environment([owner], QWEN, **limits)(ROW, 0)


@pytest.mark.parametrize("owner", [Counter, AsyncCounter])
def test_it_is_reset_with_the_row_and_scored_at_the_end(owner: type) -> None:
    assert [schema["function"]["name"] for schema in tool_environment([owner], QWEN).schemas] == ["add"]
    one, other = environment(owner), environment(owner)
    assert contents(answer(one, call("add", n=4))) == ["7"]
    ended = answer(one, "It is 7.")
    assert (ended.done, ended.reward) == (True, 0.7)
    assert answer(other, "It is 3.").reward == 0.3
    assert asyncio.run(other.cut()).reward == 0.3  # `max_turns` has ended it


def test_tools_without_a_reward_give_none() -> None:
    def add(n: int) -> int:
        """Add one.

        Args:
            n: A number.
        """
        return n + 1

    ended = answer(tool_environment([add], QWEN)(ROW, 0), "It is 3.")
    assert (ended.done, ended.reward) == (True, None)
    assert not hasattr(tool_environment([add], QWEN)(ROW, 0), "cut")


def test_a_reward_that_cannot_be_used_takes_the_sample_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counter, "get_reward", lambda self: "good")
    with pytest.raises(BadReply, match="`reward` should be a number or None, not str"):
        answer(environment(Counter), "done")
    monkeypatch.setattr(Counter, "get_reward", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        answer(environment(Counter), "done")


def test_a_reset_that_returns_a_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counter, "reset", lambda self, **columns: "You are at 3.")
    with pytest.raises(ValueError, match=r"Counter.reset returned 'You are at 3.', and can only return None"):
        answer(environment(Counter), "done")


def test_a_reset_that_hangs_takes_the_sample_out(monkeypatch: pytest.MonkeyPatch) -> None:
    forever = threading.Event()
    monkeypatch.setattr(Counter, "reset", lambda self, **columns: forever.wait())
    for turn in ("done", call("add", n=4)):
        with pytest.raises(RuntimeError, match=r"Counter could not be made: it did not end within 0.05 s"):
            answer(environment(Counter, timeout_s=0.05), turn)
    forever.set()
