"""An environment of tools: results and errors become messages, under limits of time and size."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from support.real_templates import template
from support.tool_turns import QWEN, ROW, add, answer, call, contents, run
from vigneron.environments.reply import Reply, checked_reply
from vigneron.environments.tool_schema import tool_schema
from vigneron.environments.tools import ToolEnvironments, tool_environment
from vigneron.errors import UserError


async def greet(name: str) -> str:
    """Greet somebody.

    Args:
        name: Whom.
    """
    await asyncio.sleep(0)
    return f"Hello, {name}!"


def test_a_turn_with_calls_is_answered_by_their_results() -> None:
    environment = tool_environment([add, greet], QWEN)(ROW, 0)
    raw = f"Let me see.\n{call('add', a=2, b=3)}\n{call('greet', name='Ann')}"
    message = environment.read_turn(raw, raw)
    assert message == {
        "role": "assistant",
        "content": "Let me see.",
        "tool_calls": [
            {"type": "function", "id": "call00001", "function": {"name": "add", "arguments": {"a": 2, "b": 3}}},
            {"type": "function", "id": "call00002", "function": {"name": "greet", "arguments": {"name": "Ann"}}},
        ],
    }
    reply = checked_reply(asyncio.run(environment.reply([message])))
    assert list(reply.messages) == [
        {"role": "tool", "name": "add", "tool_call_id": "call00001", "content": "5"},
        {"role": "tool", "name": "greet", "tool_call_id": "call00002", "content": "Hello, Ann!"},
    ]
    assert (reply.done, reply.reward, reply.log) == (False, None, {"tool_calls": 2, "tool_errors": 0})
    assert environment.read_turn(call("add", a=1), "")["tool_calls"][0]["id"] == "call00003"


def test_a_turn_without_calls_ends_the_conversation() -> None:
    environment = run(add)
    message = environment.read_turn("It is 5.<|special|>", "It is 5.")
    assert message == {"role": "assistant", "content": "It is 5."}
    assert asyncio.run(environment.reply([message])) == Reply(done=True, log={"tool_calls": 0, "tool_errors": 0})


def test_schemas_are_for_the_template() -> None:
    environments = tool_environment([add, greet], QWEN)
    assert environments.schemas == [tool_schema(add), tool_schema(greet)]
    assert environments.notices == []
    assert "describe them in the prompt" in tool_environment([add], template("deepseekv3")).notices[0]


@pytest.mark.parametrize(
    ("turn", "line"),
    [
        ("<tool_call>{", "error: a <tool_call> is not valid JSON: Expecting property name"),
        (call("ad", a=1), "error: unknown tool 'ad' (did you mean 'add'?)"),
        (call("zzz", a=1), "error: unknown tool 'zzz' (available: add)"),
        (call("add"), "error: missing argument 'a' of 'add'"),
        (call("add", a="2"), "error: argument 'a' of 'add' should be a whole number, not '2'"),
        (call("add", a=2, c=3), "error: unknown argument 'c' of 'add'"),
    ],
)
def test_a_bad_call_is_an_error_that_the_model_reads(turn: str, line: str) -> None:
    reply = answer(run(add), turn)
    (content,) = contents(reply)
    assert content.startswith(line)
    assert "\n" not in content
    assert reply.messages[0]["role"] == "tool"  # type: ignore[index, union-attr]
    assert (reply.done, reply.log) == (False, {"tool_calls": 1, "tool_errors": 1})


def test_a_bad_call_keeps_the_text() -> None:
    assert run(add).read_turn("Well <tool_call>{<|x|>", "Well <tool_call>{")["content"] == "Well <tool_call>{"


def test_the_error_of_an_unparsed_turn_has_a_role_that_the_template_writes() -> None:
    environment = tool_environment([add], template("gptoss"))(ROW, 0)
    reply = answer(environment, "<|channel|>commentary to=functions.add<|message|>{")
    assert reply.messages[0]["role"] == "user"  # type: ignore[index, union-attr]


def test_channels_become_keys() -> None:
    environment = tool_environment([add], template("gptoss"))(ROW, 0)
    start = "<|channel|>analysis<|message|>Sum.<|end|><|start|>assistant"
    message = environment.read_turn(f'{start}<|channel|>commentary to=functions.add<|message|>{{"a": 2}}', "")
    assert (message["content"], message["thinking"]) == ("", "Sum.")
    assert message["tool_calls"][0]["function"] == {"name": "add", "arguments": {"a": 2}}
    message = environment.read_turn(f"{start}<|channel|>final<|message|>3", "analysisSum.assistantfinal3")
    assert message == {"role": "assistant", "content": "3", "thinking": "Sum."}


def test_values_without_types_get_them_from_the_schema() -> None:
    environment = tool_environment([add], template("qwen3_5_nothink"))(ROW, 0)
    raw = "<tool_call>\n<function=add>\n<parameter=a>\n2\n</parameter>\n</function>\n</tool_call>"
    assert environment.read_turn(raw, raw)["tool_calls"][0]["function"]["arguments"] == {"a": 2}
    assert contents(answer(environment, raw)) == ["3"]
    wrong = raw.replace("\n2\n", "\ntwo\n")
    assert contents(answer(environment, wrong)) == ["error: argument 'a' of 'add' should be a whole number, not 'two'"]


def test_a_template_that_writes_no_calls_gets_them_in_the_content() -> None:
    smollm = '{% if tools %}<tool_call>{"name": …}</tool_call>{% endif %}{{ message.content }}'
    environment = tool_environment([add], smollm)(ROW, 0)
    message = environment.read_turn(f"Well. {call('add', a=1)}", "")
    assert message["content"] == f"Well. {call('add', a=1)}"
    assert "tool_calls" not in message
    assert contents(asyncio.run(environment.reply([message]))) == ["2"]


class Teapot(Exception):
    def __str__(self) -> str:
        return "short and stout\nsecond line"


class Unwritable:
    pass


def circle() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


def exits() -> Any:
    raise SystemExit(3)


def interrupts() -> Any:
    raise KeyboardInterrupt


def cancels() -> Any:
    raise asyncio.CancelledError


def teapot() -> Any:
    raise Teapot


def silent() -> Any:
    raise ValueError


FAULTS: list[tuple[Callable[[], Any], str]] = [
    (teapot, "error: Teapot: short and stout"),
    (silent, "error: ValueError"),
    (exits, "error: SystemExit: 3"),
    (interrupts, "error: KeyboardInterrupt: KeyboardInterrupt"),
    (cancels, "error: CancelledError: CancelledError"),
    (Unwritable, "error: the result, of type Unwritable, cannot be written as JSON"),
    (lambda: b"bytes", "error: the result, of type bytes, cannot be written as JSON"),
    (lambda: float("nan"), "error: the result, of type float, cannot be written as JSON"),
    (circle, "error: the result, of type list, cannot be written as JSON: Circular reference"),
]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(("fault", "line"), FAULTS)
def test_a_tool_that_fails_is_an_error_that_the_model_reads(
    fault: Callable[[], Any], line: str, is_async: bool
) -> None:
    if fault is interrupts and is_async:
        pytest.skip("a KeyboardInterrupt in the loop's thread is the user's")

    def broken() -> Any:
        """Fail."""
        return fault()

    async def broken_later() -> Any:
        """Fail."""
        await asyncio.sleep(0)
        return fault()

    function = broken_later if is_async else broken
    reply = answer(run(function), call(function.__name__))
    (content,) = contents(reply)
    expected = "error: it was cancelled" if fault is cancels and is_async else line
    assert content.startswith(expected)
    assert "\n" not in content
    assert reply.log == {"tool_calls": 1, "tool_errors": 1}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a\nb", "a\nb"),
        ({"ä": [1, None, True]}, '{"ä": [1, null, true]}'),
        (None, "null"),
        (3.5, "3.5"),
        ("half \ud800", "half ?"),
        ("", ""),
    ],
)
def test_a_text_is_written_as_it_is_and_all_else_as_json(value: Any, text: str) -> None:
    def value_of() -> Any:
        """Give it."""
        return value

    assert contents(answer(run(value_of), call("value_of"))) == [text]


def test_a_flood_is_cut_in_the_middle() -> None:
    def flood() -> str:
        """Give much."""
        return "a" * 500_000 + "z" * 500_000

    (content,) = contents(answer(run(flood, max_result_chars=1000), call("flood")))
    assert len(content) <= 1000
    start, mark, end = content.split("\n")
    assert set(start) == {"a"}
    assert set(end) == {"z"}
    assert mark == f"[… {1_000_000 - len(start) - len(end):,} characters cut …]"
    assert abs(len(start) - len(end)) <= 1
    (short,) = contents(answer(run(flood, max_result_chars=5), call("flood")))
    assert short == "aaaaa"


def test_calls_of_a_turn_run_at_the_same_time() -> None:
    """Each waits for the other: one after the other they would time out."""
    barrier = threading.Barrier(2, timeout=60)
    events = [asyncio.Event(), asyncio.Event()]

    def meet() -> str:
        """Meet."""
        return f"met {barrier.wait() in (0, 1)}"

    async def meet_later(first: bool) -> str:
        """Meet.

        Args:
            first: Which.
        """
        events[first].set()
        await events[not first].wait()
        return "met"

    environment = tool_environment([meet, meet_later], QWEN, timeout_s=60)(ROW, 0)
    turns = [call("meet"), call("meet"), call("meet_later", first=True), call("meet_later", first=False)]
    assert contents(answer(environment, *turns)) == ["met True", "met True", "met", "met"]


def test_a_turn_has_a_limit_of_calls() -> None:
    reply = answer(run(add), *[call("add", a=n) for n in range(40)])
    found = contents(reply)
    assert found[:32] == [str(n + 1) for n in range(32)]
    assert found[32:] == ["error: not run: more than 32 calls in one turn"] * 8
    assert reply.log == {"tool_calls": 40, "tool_errors": 8}


class Notes:
    """Notes of one sample."""

    def __init__(self, row: dict[str, Any], seed: int) -> None:
        self._lines = [f"{row['prompt']} {seed}"]

    def write(self, line: str) -> int:
        """Add a line.

        Args:
            line: The line.
        """
        before = len(self._lines)
        time.sleep(0.001)  # others would come between
        self._lines = [*self._lines[:before], line]
        return len(self._lines)

    async def read(self) -> list[str]:
        """Read all lines."""
        return self._lines

    def _hidden(self) -> None: ...


def test_a_class_has_an_object_for_each_sample_whose_calls_run_in_order() -> None:
    environments = tool_environment([Notes, add], QWEN)
    assert sorted(environments.tools) == ["add", "read", "write"]
    first, second = environments({"prompt": "p"}, 7), environments({"prompt": "q"}, 8)
    turns = [call("write", line=str(n)) for n in range(5)]
    assert contents(answer(first, *turns, call("add", a=1), call("read"))) == [
        *("2", "3", "4", "5", "6", "2"),
        '["p 7", "0", "1", "2", "3", "4"]',
    ]
    assert contents(answer(second, call("read"))) == ['["q 8"]']


def test_tools_are_named_by_module(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    (tmp_path / "own_tools_1.py").write_text(
        'def double(x: int) -> int:\n    """Double.\n\n    Args:\n        x: It.\n    """\n    return 2 * x\n'
    )
    monkeypatch.chdir(tmp_path)
    environments = tool_environment(["own_tools_1:double"], QWEN)
    assert contents(answer(environments(ROW, 0), call("double", x=4))) == ["8"]
    with pytest.raises(
        UserError, match=r"^environment.tools: 'own_tools_1' has no function 'triple' \(available: double\)$"
    ):
        tool_environment(["own_tools_1:triple"], QWEN)


class Empty:
    pass


@pytest.mark.parametrize(
    ("names", "chat_template", "line"),
    [
        ([add, add], QWEN, "environment.tools: two tools have the name 'add': rename one"),
        ([], QWEN, "environment.tools: name at least one tool"),
        ([add], template("gemma3"), "environment.tools: the model's chat template has no known format of tool calls"),
        ([add], None, "has no known format of tool calls"),
        ([Empty], QWEN, "environment.tools: the class 'Empty' has no public method"),
        ([lambda x: x], QWEN, "environment.tools: the tool '<lambda>' has no type hint for its parameter 'x'"),
        (["no colon"], QWEN, "environment.tools: should be module:function, not 'no colon'"),
    ],
)
def test_what_cannot_be_a_tool_is_one_line(names: list[Any], chat_template: str | None, line: str) -> None:
    with pytest.raises(UserError) as error:
        tool_environment(names, chat_template)
    assert line in str(error.value)
    assert "\n" not in str(error.value)


def test_an_environment_can_be_made_in_another_loop_each_turn() -> None:
    environments: ToolEnvironments = tool_environment([add, greet], QWEN)
    environment = environments(ROW, 0)
    for _ in range(3):  # `answer` runs a loop of its own
        assert contents(answer(environment, call("add", a=1), call("greet", name="Bo"))) == ["2", "Hello, Bo!"]
