"""An environment of tools: it runs what the model's turn calls, and answers with the results.

A turn without calls ends the conversation. Every fault of a call is a message that the model reads, "error: …": a call
that cannot be parsed, an unknown tool, wrong arguments, an exception, a result that is late or cannot be written.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from vigneron.data.prompts import as_messages
from vigneron.environments.python_tool import CodeError, longest_s, python_tool, sandbox_threads
from vigneron.environments.reply import Reply
from vigneron.environments.tool_calls import BadCall, Call, CallFormat, call_format
from vigneron.environments.tool_objects import REWARD, made, reward_of, tool_methods
from vigneron.environments.tool_runs import ToolFailure, cut, one_line, run_tool
from vigneron.environments.tool_schema import Schema, WrongArguments, checked_arguments, tool_schema
from vigneron.errors import UserError, did_you_mean
from vigneron.policy.message_forms import Message, copied, message_text
from vigneron.threads import CallThreads, TooManyHang
from vigneron.user_code import python_function

PYTHON = "python"
TOOL_ERROR = "tool_error"
"""The key of an assistant's message whose turn could not be parsed: why."""
PARSED_CALLS = "parsed_calls"
"""The key of calls that stand in the content, for templates that do not write `tool_calls`."""
MAX_CALLS = 32
"""Of one turn; further ones are answered with an error."""
MAX_THREADS = 128


@cache
def shared_threads() -> CallThreads:
    return CallThreads(MAX_THREADS, "tool")


@dataclass(frozen=True)
class Tool:
    schema: Schema
    function: Callable[..., Any]
    """Of a class: its method, which is given the sample's object."""
    owner: type | None = None
    """The class of a method: each sample has an object of its own."""
    limit_s: float = 30.0
    threads: CallThreads = field(default_factory=shared_threads, repr=False)

    @property
    def name(self) -> str:
        return str(self.schema["function"]["name"])


class ToolEnvironment:
    """Of one sample. `read_turn` turns a sampled turn into a message, `reply` answers the last message."""

    keeps_messages = True
    """`reply` leaves the messages as they are, so it is given no copy."""

    def __init__(
        self,
        row: Mapping[str, Any],
        seed: int,
        *,
        tools: Mapping[str, Tool],
        format: CallFormat,
        max_result_chars: int = 4000,
        generation_prompts: Mapping[str, str] | None = None,
    ) -> None:
        self._tools, self._format, self._max_result_chars = tools, format, max_result_chars
        self._generation_prompts = generation_prompts or {}
        self._row, self._seed = row, seed
        self._owners = dict.fromkeys(tool.owner for tool in tools.values() if tool.owner is not None)
        self._objects: dict[type, Any] = {}
        self._limit_s = max(tool.limit_s for tool in tools.values())
        self._calls = 0
        self._begun = _begun_answer(as_messages(row["prompt"]), self._generation_prompts)
        if any(hasattr(owner, REWARD) for owner in self._owners):
            self.cut = self._scored

    def read_turn(self, raw: str, text: str) -> Message:
        """The assistant's message of a sampled turn: `raw` is its text with special tokens and without its end token,
        `text` the same without special tokens."""
        try:
            turn = self._format.parse(raw, self._begun)
        except BadCall as error:
            return {"role": "assistant", "content": text, TOOL_ERROR: str(error)}
        message: dict[str, Any] = {"role": "assistant", "content": text if turn.text == raw else turn.text}
        if turn.thinking is not None:
            message["thinking"] = turn.thinking
        if turn.calls:
            calls = [self._as_message(call) for call in turn.calls]
            message |= {"tool_calls": calls} if self._format.writes_calls else {PARSED_CALLS: calls, "content": raw}
        return message

    def _as_message(self, call: Call) -> dict[str, Any]:
        self._calls += 1
        arguments = dict(call.arguments)
        tool = self._tools.get(call.name)
        if not call.typed and tool is not None:
            with suppress(WrongArguments):  # `reply` checks them
                arguments = checked_arguments(tool.schema, arguments, typed=False)
        # Mistral's templates take ids of nine letters and digits.
        identity = call.id or f"call{self._calls % 100_000:05d}"
        return {"type": "function", "id": identity, "function": {"name": call.name, "arguments": arguments}}

    async def reply(self, messages: list[Message]) -> Reply:
        reply = await self._reply(messages[-1])
        if not reply.done:
            self._begun = _begun_answer(as_messages(reply.messages), self._generation_prompts)
        return reply

    async def _reply(self, last: Message) -> Reply:
        if TOOL_ERROR in last:
            fault: dict[str, Any] = {"role": self._format.error_role, "content": f"error: {last[TOOL_ERROR]}"}
            if self._format.error_role == "tool":
                self._calls += 1
                fault |= {"name": "error", "tool_call_id": f"call{self._calls % 100_000:05d}"}
            return Reply([fault], log={"tool_calls": 1, "tool_errors": 1})
        calls = last.get("tool_calls") or last.get(PARSED_CALLS) or ()
        if not calls:
            return replace(await self._scored(), log={"tool_calls": 0, "tool_errors": 0})
        await self._make_objects()
        results: dict[int, tuple[str, bool]] = {}
        groups = self._groups(calls)
        if len(groups) == 1:  # no task of its own for the most frequent case
            await self._run_in_order(calls, groups[0], results)
        else:
            await asyncio.gather(*(self._run_in_order(calls, places, results) for places in groups))
        answers = [
            {"role": "tool", "name": call["function"]["name"], "tool_call_id": call["id"], "content": results[at][0]}
            for at, call in enumerate(calls)
        ]
        errors = sum(failed for _, failed in results.values())
        return Reply(answers, log={"tool_calls": len(calls), "tool_errors": errors})

    async def _scored(self) -> Reply:
        """The end of the conversation, with the reward of objects that give one."""
        await self._make_objects()
        return Reply(done=True, reward=await reward_of(self._objects.values(), shared_threads(), self._limit_s))

    async def _make_objects(self) -> None:
        """Before the first call, beside the sampling: a user's `reset` may be slow, or hang."""
        for owner in self._owners:
            if owner not in self._objects:
                arguments = owner, self._row, self._seed, shared_threads(), self._limit_s
                self._objects[owner] = await made(*arguments)

    def _groups(self, calls: Sequence[Any]) -> list[list[int]]:
        """Which calls run after each other: those of one object's methods. All others run at the same time."""
        groups: dict[Any, list[int]] = {}
        for at, call in enumerate(calls):
            tool = self._tools.get(call["function"]["name"])
            groups.setdefault(at if tool is None or tool.owner is None else tool.owner, []).append(at)
        return list(groups.values())

    async def _run_in_order(
        self, calls: Sequence[Any], places: Sequence[int], results: dict[int, tuple[str, bool]]
    ) -> None:
        for at in places:
            if at >= MAX_CALLS:
                results[at] = f"error: not run: more than {MAX_CALLS} calls in one turn", True
            else:
                results[at] = await self._result(calls[at]["function"])

    async def _result(self, call: Mapping[str, Any]) -> tuple[str, bool]:
        """The text that the model reads, and whether the call failed."""
        name = call["name"]
        tool = self._tools.get(name)
        try:
            if tool is None:
                raise ToolFailure(f"unknown tool '{name}'{did_you_mean(name, self._tools)}")
            arguments = copied(checked_arguments(tool.schema, call["arguments"]))
            function = tool.function if tool.owner is None else getattr(self._objects[tool.owner], name)
            return cut(await run_tool(function, arguments, tool.threads, tool.limit_s), self._max_result_chars), False
        except CodeError as error:
            return cut(str(error), self._max_result_chars), True
        except (ToolFailure, WrongArguments) as error:
            return f"error: {one_line(error)}", True
        except TooManyHang as error:
            return f"error: not run: {one_line(error)}", True
        except Exception as error:  # the edge to the user's code
            text = one_line(error)
            kind = type(error).__name__
            return f"error: {kind}: {text}" if text != kind else f"error: {kind}", True


def _begun_answer(messages: Sequence[Message], generation_prompts: Mapping[str, str]) -> str:
    """How the prompt begins the answer to these messages: a last message of the assistant is continued."""
    *before, last = messages
    if last["role"] == "assistant" and not last.get("tool_calls") and before:
        return _begun_answer(before, generation_prompts) + message_text(last)
    return generation_prompts.get(last["role"], "")


@dataclass(frozen=True)
class ToolEnvironments:
    """Makes the environment of each sample: call it with (row, seed)."""

    tools: Mapping[str, Tool]
    format: CallFormat
    max_result_chars: int = 4000
    generation_prompts: Mapping[str, str] = field(default_factory=dict)
    """What the chat template writes before an answer to a message of each role (`policy.chat.generation_prompts`)."""

    @property
    def schemas(self) -> list[Schema]:
        """For the chat template's `tools`."""
        return [tool.schema for tool in self.tools.values()]

    @property
    def notices(self) -> list[str]:
        if self.format.takes_tools:
            return []
        return ["the model's chat template does not show the tools to the model: describe them in the prompt"]

    def __call__(self, row: Mapping[str, Any], seed: int) -> ToolEnvironment:
        return ToolEnvironment(
            row,
            seed,
            tools=self.tools,
            format=self.format,
            max_result_chars=self.max_result_chars,
            generation_prompts=self.generation_prompts,
        )


def tool_environment(
    names: Sequence[str | Callable[..., Any]],
    chat_template: str | None,
    *,
    timeout_s: float = 30.0,
    max_result_chars: int = 4000,
    key: str = "environment.tools",
) -> ToolEnvironments:
    """`names` are `python`, `module:function` or `module:Class`, all of whose public methods are tools; or functions
    and classes themselves. Raises a `UserError`, which names the config's `key`."""
    format = call_format(chat_template)
    if format is None:
        raise UserError(
            f"{key}: the model's chat template has no known format of tool calls: use a model whose template has one "
            "(Qwen, Llama 3.1, Mistral, DeepSeek, GLM, gpt-oss, …), or an environment of your own that reads calls"
        )
    if not names:
        raise UserError(f"{key}: name at least one tool, `python` or `module:function`")
    return ToolEnvironments(_named_tools(names, timeout_s, key), format, max_result_chars)


def check_tools(names: Sequence[str], key: str = "environment.tools") -> None:
    """Raise for functions and classes that cannot be tools. No sandbox is looked for, and no template is needed."""
    _named_tools([name for name in names if name != PYTHON], 30.0, key)


def _named_tools(names: Sequence[str | Callable[..., Any]], timeout_s: float, key: str) -> dict[str, Tool]:
    tools: dict[str, Tool] = {}
    for name in names:
        for tool in _tools(name, timeout_s, key):
            if tool.name in tools:
                raise UserError(f"{key}: two tools have the name '{tool.name}': rename one")
            tools[tool.name] = tool
    return tools


def _tools(name: str | Callable[..., Any], timeout_s: float, key: str) -> list[Tool]:
    try:
        if name == PYTHON:
            function = python_tool(timeout_s)
            return [Tool(tool_schema(function), function, None, longest_s(timeout_s), sandbox_threads())]
        given = python_function(name, key) if isinstance(name, str) else name
        if not isinstance(given, type):
            return [Tool(tool_schema(given), given, None, timeout_s)]
        return [Tool(tool_schema(method), method, given, timeout_s) for method in tool_methods(given)]
    except UserError as error:
        raise UserError(str(error) if str(error).startswith(f"{key}:") else f"{key}: {error}") from error
