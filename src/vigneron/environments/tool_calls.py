"""The format in which a model calls tools: recognised by its chat template, parsed strictly.

Nothing is guessed or repaired: a policy that is paid for a broken call learns broken calls.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from vigneron.environments import json_calls, python_calls, tagged_calls
from vigneron.environments.call_syntax import BadCall, Call, ParsedTurn, Reader
from vigneron.environments.harmony_calls import harmony

__all__ = ["BadCall", "Call", "CallFormat", "ParsedTurn", "call_format"]

THINKING = (("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<|channel>", "<channel|>"))
"""Marks of reasoning. Calls within it are not made."""


@dataclass(frozen=True)
class CallFormat:
    name: str
    parser: Callable[[str], ParsedTurn]
    error_role: Literal["tool", "user"] = "tool"
    """The role of a message about a turn that could not be parsed: some templates write a tool's message only after a
    call, or not as such."""
    thinking: tuple[str, str] | None = None
    one_call: bool = False
    """Whether the template writes one call a turn."""
    writes_calls: bool = True
    """Whether the template writes `tool_calls`; if not they have to stand in the content."""
    takes_tools: bool = True
    """Whether the template tells the model which tools there are."""
    end_tokens: tuple[str, ...] = ()
    """Tokens that end a turn with calls, where it is not the token that ends an answer."""

    def parse(self, raw: str, begun: str = "") -> ParsedTurn:
        """Parse a turn, with its special tokens and without its end token. Raises `BadCall`.

        `begun` is how the prompt begins the turn, which may open a block of reasoning.
        """
        before, body = self._reasoning(raw, begun)
        if body is None:
            return ParsedTurn(raw)
        turn = self.parser(body)
        if self.one_call and len(turn.calls) > 1:
            raise BadCall(f"{len(turn.calls)} calls in one turn: make one at a time")
        given = [call.id for call in turn.calls if call.id is not None]
        if len(set(given)) < len(given):
            raise BadCall("two calls have the same id")
        return replace(turn, text=before + turn.text) if before else turn

    def _reasoning(self, raw: str, begun: str) -> tuple[str, str | None]:
        """The turn's reasoning and what follows it; None if it has no end."""
        if self.thinking is None:
            return "", raw
        opening, closing = self.thinking
        begun = begun[begun.rfind(opening) :] if opening in begun else ""
        text = begun + raw
        reader = Reader(text)
        reader.skip_space()
        opened, end = reader.starts(opening), text.find(closing)
        if end < 0:
            return "", None if opened else raw
        while end >= 0:  # there may be several blocks
            reader.at = behind = end + len(closing)
            reader.skip_space()
            if not reader.starts(opening):
                in_raw = max(behind - len(begun), 0)
                return raw[:in_raw], raw[in_raw:]
            end = text.find(closing, behind)
        return "", None


FORMATS: tuple[tuple[CallFormat, tuple[str, ...]], ...] = (
    (
        CallFormat("harmony", harmony, "user", one_call=True, end_tokens=("<|call|>",)),
        ("<|channel|>", "functions.", "<|call|>"),
    ),
    (CallFormat("gemma4", tagged_calls.gemma4, "user", end_tokens=("<|tool_response>",)), ("<|tool_call>call:",)),
    (
        CallFormat("function_gemma", tagged_calls.function_gemma, end_tokens=("<start_function_response>",)),
        ("<start_function_call>",),
    ),
    (CallFormat("kimi", json_calls.kimi), ("<|tool_call_argument_begin|>",)),
    (CallFormat("deepseek_v3", json_calls.deepseek_v3), ("<｜tool▁calls▁begin｜>", "```json")),
    (CallFormat("deepseek_v31", json_calls.deepseek_v31), ("<｜tool▁calls▁begin｜>",)),
    (CallFormat("mistral_args", json_calls.mistral_args), ("[TOOL_CALLS]", "[ARGS]")),
    (CallFormat("mistral", json_calls.mistral), ("[TOOL_CALLS]",)),
    (CallFormat("lfm2", python_calls.lfm2), ("<|tool_call_start|>",)),
    (CallFormat("qwen_coder", tagged_calls.qwen_coder), ("<tool_call>", "<function=", "<parameter=")),
    (CallFormat("glm", tagged_calls.glm, "user", end_tokens=("<|observation|>",)), ("<tool_call>", "<arg_key>")),
    (CallFormat("hermes", json_calls.hermes), ("<tool_call>{",)),
    (CallFormat("hermes", json_calls.hermes), ("within <tool_call></tool_call> XML tags as follows:",)),
    (CallFormat("granite3", json_calls.granite3), ("<|tool_call|>", "<|start_of_role|>")),
    (CallFormat("phi4", json_calls.phi4), ("<|tool|>", "<|/tool|>")),
    (CallFormat("functools", json_calls.functools), ("functools[",)),
    (
        CallFormat("llama3", json_calls.llama3, end_tokens=("<|eom_id|>",)),
        ('"parameters": dictionary',),
    ),
    (CallFormat("pythonic", python_calls.pythonic), ("[func_name1(",)),
)
"""Formats with the marks that their templates have, all of them, but for space; the first that fits is taken."""


def call_format(chat_template: str | None) -> CallFormat | None:
    """The format that a chat template's model calls tools in; None if the template has none, or an unknown one."""
    template = chat_template or ""
    dense = _dense(template)
    for known, marks in FORMATS:
        if all(_dense(mark) in dense for mark in marks):
            return replace(
                known,
                thinking=next((pair for pair in THINKING if pair[1] in template), None),
                one_call=known.one_call or "only supports single tool-calls" in template,
                writes_calls="tool_calls" in template,
                takes_tools="tools" in template,
            )
    return None


def _dense(template: str) -> str:
    """Without space, and without the backslashes of its strings."""
    return "".join(template.replace("\\n", "").replace('\\"', '"').split())
