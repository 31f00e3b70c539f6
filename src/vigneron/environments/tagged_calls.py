"""Calls whose arguments are written one by one between tags: Qwen3-Coder, GLM-4.5, FunctionGemma and Gemma 4."""

import re
from typing import Any

from vigneron.environments.call_syntax import (
    MAX_DEPTH,
    BadCall,
    Call,
    ParsedTurn,
    Reader,
    checked_name,
    checked_value,
    quoted,
)
from vigneron.files import parse_int

NUMBER = re.compile(r"-?[0-9]++(\.[0-9]++)?+([eE][+-]?[0-9]++)?+")
CONSTANTS = {"true": True, "false": False, "null": None}


def qwen_coder(raw: str) -> ParsedTurn:
    """Qwen3-Coder, Qwen3.5 and later, Nemotron 3: `<function=NAME>` with a `<parameter=NAME>` for each argument, in
    `<tool_call>`. Values stand on lines of their own; which are texts and which JSON, the tool's schema says."""
    reader = Reader(raw, raw.find("<tool_call>"))
    if reader.at < 0:
        for mark in ("<function=", "</tool_call>"):
            if mark in raw:
                raise BadCall(f"{mark!r} without '<tool_call>' before it")
        return ParsedTurn(raw)
    text, calls = raw[: reader.at], []
    while not reader.at_end():
        if not reader.take("<tool_call>"):
            raise BadCall(f"text after a call: {reader.rest()}")
        reader.skip_space()
        reader.expect("<function=", "<tool_call>")
        calls.append(_function(reader))
    return ParsedTurn(text.rstrip(), tuple(calls))


def _function(reader: Reader) -> Call:
    name = checked_name(reader.until(">", "<function=").strip())
    arguments: dict[str, Any] = {}
    reader.skip_space()
    while reader.take("<parameter="):
        key = reader.until(">", "<parameter=")
        value = reader.until("</parameter>", f"the parameter {quoted(key)}")
        _add(arguments, key, value.removeprefix("\n").removesuffix("\n"), name)
        reader.skip_space()
    reader.expect("</function>", "a parameter" if arguments else "<function=…>")
    reader.skip_space()
    reader.expect("</tool_call>", "</function>")
    return Call(name, arguments, typed=False)


def glm(raw: str) -> ParsedTurn:
    """GLM-4.5 to 4.7: `<tool_call>NAME`, then `<arg_key>` and `<arg_value>` for each argument. A value is a text, or
    JSON if the tool's schema says so."""
    reader = Reader(raw, raw.find("<tool_call>"))
    if reader.at < 0:
        if "</tool_call>" in raw:
            raise BadCall("'</tool_call>' without '<tool_call>' before it")
        return ParsedTurn(raw)
    text, calls = raw[: reader.at], []
    while not reader.at_end():
        if not reader.take("<tool_call>"):
            raise BadCall(f"text after a call: {reader.rest()}")
        name_end = reader.text.find("<", reader.at)
        if name_end < 0:
            raise BadCall("<tool_call> is not closed by '</tool_call>'")
        name, reader.at = checked_name(reader.text[reader.at : name_end].strip()), name_end
        arguments: dict[str, Any] = {}
        while reader.take("<arg_key>"):
            key = reader.until("</arg_key>", "<arg_key>").strip()
            reader.skip_space()
            reader.expect("<arg_value>", "</arg_key>")
            _add(arguments, key, reader.until("</arg_value>", "<arg_value>"), name)
            reader.skip_space()
        reader.expect("</tool_call>", f"the arguments of '{name}'")
        calls.append(Call(name, arguments, typed=False))
    return ParsedTurn(text.rstrip(), tuple(calls))


def gemma4(raw: str) -> ParsedTurn:
    """Gemma 4: `<|tool_call>call:NAME{key:value,…}<tool_call|>`, texts between `<|"|>`."""
    return _gemma(raw, "<|tool_call>", "<tool_call|>", '<|"|>')


def function_gemma(raw: str) -> ParsedTurn:
    """FunctionGemma: `<start_function_call>call:NAME{key:value,…}<end_function_call>`, texts between `<escape>`. vLLM's
    template writes every value so; which are numbers, the tool's schema says."""
    return _gemma(raw, "<start_function_call>", "<end_function_call>", "<escape>", typed=False)


def _gemma(raw: str, begin: str, end: str, quote: str, *, typed: bool = True) -> ParsedTurn:
    reader = Reader(raw, raw.find(begin))
    if reader.at < 0:
        if end in raw:
            raise BadCall(f"{end!r} without {begin!r} before it")
        return ParsedTurn(raw)
    text, calls = raw[: reader.at], []
    while not reader.at_end():
        if not reader.take(begin):
            raise BadCall(f"text after a call: {reader.rest()}")
        reader.expect("call:", begin)
        name = checked_name(reader.until("{", f"{begin}call:").strip())
        arguments = _object(reader, quote, 1)
        reader.expect(end, f"the arguments of '{name}'")
        calls.append(Call(name, checked_value(arguments, f"the call of '{name}'"), typed=typed))
    return ParsedTurn(text.rstrip(), tuple(calls))


def _object(reader: Reader, quote: str, depth: int) -> dict[str, Any]:
    """Behind its brace."""
    values: dict[str, Any] = {}
    reader.skip_space()
    if reader.take("}"):
        return values
    while True:
        reader.skip_space()
        if reader.take(quote):
            key = reader.until(quote, "a key")
            reader.expect(":", "a key")
        else:
            key = reader.until(":", "a key").strip()
        if not key or key in values:
            raise BadCall(f"the key {quoted(key)} stands twice" if key else "a value without a key")
        values[key] = _value(reader, quote, depth)
        reader.skip_space()
        if reader.take("}"):
            return values
        reader.expect(",", f"the value of {quoted(key)}")


def _value(reader: Reader, quote: str, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise BadCall(f"arguments are nested more than {MAX_DEPTH} levels deep")
    reader.skip_space()
    if reader.take(quote):
        return reader.until(quote, "a text")
    if reader.take("{"):
        return _object(reader, quote, depth + 1)
    if reader.take("["):
        return _list(reader, quote, depth)
    for word, constant in CONSTANTS.items():
        if reader.take(word):
            return constant
    return number(reader)


def _list(reader: Reader, quote: str, depth: int) -> list[Any]:
    values: list[Any] = []
    reader.skip_space()
    if reader.take("]"):
        return values
    while True:
        values.append(_value(reader, quote, depth + 1))
        reader.skip_space()
        if reader.take("]"):
            return values
        reader.expect(",", "a value of a list")


def number(reader: Reader) -> int | float:
    match = NUMBER.match(reader.text, reader.at)
    if match is None:
        raise BadCall(f"expected a value, not {reader.rest()}")
    digits, reader.at = match.group(), match.end()
    try:
        value = float(digits) if match.group(1) or match.group(2) else parse_int(digits)
    except ValueError as error:
        raise BadCall(str(error)) from None
    if value - value != 0:
        raise BadCall(f"{quoted(digits)} is too large")
    return value


def _add(arguments: dict[str, Any], key: str, value: str, name: str) -> None:
    if not key or key in arguments:
        raise BadCall(f"the call of '{name}' has {'a value without a key' if not key else f'{quoted(key)} twice'}")
    arguments[key] = checked_value(value, f"the call of '{name}'")
