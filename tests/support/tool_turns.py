"""A tool, and turns that call tools, with their replies."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from support.real_templates import template
from vigneron.environments.reply import Reply, checked_reply
from vigneron.environments.tools import ToolEnvironment, tool_environment

QWEN = template("qwen3")
ROW = {"prompt": "How much is 2 and 3?"}


def add(a: int, b: int = 1) -> int:
    """Add two numbers.

    Args:
        a: One.
        b: The other.
    """
    return a + b


def run(function: Callable[..., Any], **limits: Any) -> ToolEnvironment:
    return tool_environment([function], QWEN, **limits)(ROW, 0)


def call(tool: str, /, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': tool, 'arguments': arguments})}\n</tool_call>"


def answer(environment: ToolEnvironment, *turns: str) -> Reply:
    """The reply to a turn, checked as the rollout does."""
    raw = "\n".join(turns)
    message = environment.read_turn(raw, raw)
    return checked_reply(asyncio.run(environment.reply([{"role": "user", "content": "question"}, message])))


def contents(reply: Reply) -> list[str]:
    assert not isinstance(reply.messages, str)
    return [message["content"] for message in reply.messages]
