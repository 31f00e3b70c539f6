"""Calls whose arguments are JSON: Hermes and Qwen, Llama 3, Mistral, DeepSeek, Phi-4-mini, Granite, Kimi, gpt-oss."""

import re

from vigneron.environments.call_syntax import (
    BadCall,
    Call,
    ParsedTurn,
    Reader,
    call_of,
    calls_of,
    checked_name,
    checked_object,
    quoted,
)

PYTHON_TAG = "<|python_tag|>"
TYPE = re.compile(r'"type"\s*+:\s*+"function"')
"""As Llama's own models often begin a call."""


def hermes(raw: str) -> ParsedTurn:
    """Hermes 2 and 3, Qwen2.5, Qwen3, SmolLM3, Granite 4: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`."""
    reader = Reader(raw, raw.find("<tool_call>"))
    if reader.at < 0:
        return _plain(raw, "</tool_call>", "<tool_call>")
    text, calls = raw[: reader.at], []
    while not reader.at_end():
        if not reader.take("<tool_call>"):
            raise BadCall(f"text after a call: {reader.rest()}")
        calls.append(call_of(reader.json("a <tool_call>")))
        reader.skip_space()
        reader.expect("</tool_call>", "the JSON of a call")
    return ParsedTurn(text.rstrip(), tuple(calls))


def llama3(raw: str) -> ParsedTurn:
    """Llama 3.1, 3.2, 3.3 and 4: the turn is `{"name": …, "parameters": {…}}`, after `<|python_tag|>` or not, several
    with or without a semicolon between them. Without the tag, other JSON is an answer."""
    text, tag, after = raw.partition(PYTHON_TAG)
    if not tag:
        after, text = raw, ""
        if after.startswith("<|python_start|>"):  # Llama 4 writes a call's text so
            text, closed, after = after.removeprefix("<|python_start|>").partition("<|python_end|>")
            if not closed:
                raise BadCall("'<|python_start|>' is not closed by '<|python_end|>'")
        if not _begins_call(after):
            return ParsedTurn(text + after)
    reader = Reader(after)
    calls: list[Call] = []
    while not reader.at_end():
        value = reader.json("a call")
        if isinstance(value, dict) and value.get("type", "function") != "function":
            raise BadCall('the `type` of a call should be "function"')
        calls.append(call_of(value, "parameters", others=["type"]))
        reader.skip_space()
        if not reader.take(";") and not reader.at_end() and not reader.starts("{"):
            raise BadCall(f"text after a call: {reader.rest()}")
    if not calls:
        raise BadCall(f"no call after {PYTHON_TAG}")
    return ParsedTurn(text.rstrip(), tuple(calls))


def _begins_call(text: str) -> bool:
    reader = Reader(text)
    reader.skip_space()
    if not reader.take("{"):
        return False
    reader.skip_space()
    return reader.starts('"name"') or TYPE.match(text, reader.at) is not None


def mistral(raw: str) -> ParsedTurn:
    """Mistral 7B v0.3, Nemo, Small 3.1: `[TOOL_CALLS][{"name": …, "arguments": {…}, "id": …}]`."""
    text, tag, after = raw.partition("[TOOL_CALLS]")
    if not tag:
        return ParsedTurn(raw)
    reader = Reader(after)
    calls = calls_of(reader.json("the list after [TOOL_CALLS]"), others=["id"])
    for call in calls:
        _check_mistral_id(call.id)
    reader.only_space_left("the list of calls")
    return ParsedTurn(text.rstrip(), calls)


def mistral_args(raw: str) -> ParsedTurn:
    """Mistral Small 3.2, Magistral, Devstral, Ministral 3: `[TOOL_CALLS]name[ARGS]{…}`, Small with `[CALL_ID]id` after
    the name; once for each call."""
    text, tag, after = raw.partition("[TOOL_CALLS]")
    if not tag:
        return ParsedTurn(raw)
    reader = Reader(after)
    calls: list[Call] = []
    while True:
        name, given, identity = reader.until("[ARGS]", "the name after [TOOL_CALLS]").partition("[CALL_ID]")
        name = checked_name(name.strip())
        _check_mistral_id(identity.strip() if given else None)
        arguments = checked_object(reader.json(f"the arguments of '{name}'"), name)
        calls.append(Call(name, arguments, identity.strip() or None))
        if reader.at_end():
            return ParsedTurn(text.rstrip(), tuple(calls))
        if not reader.take("[TOOL_CALLS]"):
            raise BadCall(f"text after a call: {reader.rest()}")


def _check_mistral_id(identity: str | None) -> None:
    """Mistral's templates refuse any other."""
    if identity is not None and not (len(identity) == 9 and identity.isascii() and identity.isalnum()):
        raise BadCall(f"the id of a call should be nine letters and digits, not {quoted(identity)}")


def deepseek_v3(raw: str) -> ParsedTurn:
    """DeepSeek V3, R1 and its distilled models: the type, the name and JSON in a fence, between marks."""
    return _deepseek(raw, fenced=True)


def deepseek_v31(raw: str) -> ParsedTurn:
    """DeepSeek V3.1: the name and JSON, between marks."""
    return _deepseek(raw, fenced=False)


def _deepseek(raw: str, fenced: bool) -> ParsedTurn:
    text, begin, after = raw.partition("<｜tool▁calls▁begin｜>")
    if not begin:
        return _plain(raw, "<｜tool▁call▁begin｜>", "<｜tool▁calls▁begin｜>")
    reader = Reader(after)
    calls: list[Call] = []
    # R1's own template does not write the last mark after a single call.
    while not reader.at_end() and not (calls and reader.starts("<｜tool▁calls▁end｜>")):
        reader.expect("<｜tool▁call▁begin｜>", "a call" if calls else "<｜tool▁calls▁begin｜>")
        head = reader.until("<｜tool▁sep｜>", "<｜tool▁call▁begin｜>")
        if fenced:
            if head != "function":
                raise BadCall(f"the type of a call should be 'function', not {quoted(head)}")
            head = reader.until("\n```json\n", "the name of a call")
        name = checked_name(head.strip())
        calls.append(Call(name, checked_object(reader.json(f"the arguments of '{name}'"), name)))
        reader.skip_space()
        if fenced:
            reader.expect("```", "the JSON of a call")
        reader.expect("<｜tool▁call▁end｜>", "the JSON of a call")
    if not calls:
        raise BadCall("no call after <｜tool▁calls▁begin｜>")
    reader.take("<｜tool▁calls▁end｜>")
    reader.only_space_left("the calls")
    return ParsedTurn(text.rstrip(), tuple(calls))


def phi4(raw: str) -> ParsedTurn:
    """Phi-4-mini: `<|tool_call|>[{"name": …, "arguments": {…}}]<|/tool_call|>`."""
    text, tag, after = raw.partition("<|tool_call|>")
    if not tag:
        return _plain(raw, "<|/tool_call|>", "<|tool_call|>")
    reader = Reader(after)
    calls = calls_of(reader.json("the list after <|tool_call|>"))
    reader.skip_space()
    reader.expect("<|/tool_call|>", "the list of calls")
    reader.only_space_left("the calls")
    return ParsedTurn(text.rstrip(), calls)


def functools(raw: str) -> ParsedTurn:
    """Phi-4-mini with vLLM's template: `functools[{"name": …, "arguments": {…}}]`."""
    return _after_mark(raw, "functools[", back=1)


def granite3(raw: str) -> ParsedTurn:
    """Granite 3: `<|tool_call|>[{"name": …, "arguments": {…}}]`, without a closing mark."""
    return _after_mark(raw, "<|tool_call|>")


def _after_mark(raw: str, mark: str, back: int = 0) -> ParsedTurn:
    at = raw.find(mark)
    if at < 0:
        return ParsedTurn(raw)
    reader = Reader(raw, at + len(mark) - back)
    calls = calls_of(reader.json(f"the list after {mark[: len(mark) - back]}"))
    reader.only_space_left("the list of calls")
    return ParsedTurn(raw[:at].rstrip(), calls)


def kimi(raw: str) -> ParsedTurn:
    """Kimi K2: each call has an id, `functions.NAME:INDEX`, and JSON, between marks."""
    text, begin, after = raw.partition("<|tool_calls_section_begin|>")
    if not begin:
        return _plain(raw, "<|tool_call_begin|>", "<|tool_calls_section_begin|>")
    reader = Reader(after)
    calls: list[Call] = []
    reader.skip_space()
    while not (calls and reader.take("<|tool_calls_section_end|>")):
        reader.expect("<|tool_call_begin|>", "a call" if calls else "<|tool_calls_section_begin|>")
        identity = reader.until("<|tool_call_argument_begin|>", "<|tool_call_begin|>").strip()
        name, colon, index = identity.removeprefix("functions.").rpartition(":")
        if not identity.startswith("functions.") or not colon or not index.isdecimal():
            raise BadCall(f"the id of a call should be functions.NAME:INDEX, not {quoted(identity)}")
        name = checked_name(name)
        calls.append(Call(name, checked_object(reader.json(f"the arguments of '{name}'"), name), identity))
        reader.skip_space()
        reader.expect("<|tool_call_end|>", "the JSON of a call")
        reader.skip_space()
    reader.only_space_left("the calls")
    return ParsedTurn(text.rstrip(), tuple(calls))


def _plain(raw: str, mark: str, opening: str) -> ParsedTurn:
    if mark in raw:
        raise BadCall(f"{mark!r} without {opening!r} before it")
    return ParsedTurn(raw)
