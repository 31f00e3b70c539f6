"""Calls as a list of Python calls: Llama 4, Llama 3.2 and Gemma 3 with pythonic templates, LFM2.

    [get_weather(city="Paris", days=3), now()]

Values are literals. They are read here and not by Python's parser, whose errors on hostile text are many.
"""

import ast
import re
from typing import Any

from vigneron.environments.call_syntax import MAX_DEPTH, BadCall, Call, ParsedTurn, Reader, checked_value, quoted
from vigneron.environments.tagged_calls import number

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*+")
# Of one line; `\\.` takes an escaped quote.
TEXT = re.compile(r"""'(?:[^'\\\n]++|\\.)*+'|"(?:[^"\\\n]++|\\.)*+\"""")
# What Python warns of is refused here: to catch its warnings would change those of other threads.
ESCAPED = re.compile(r"""(?:[^\\]++|\\(?:[\\'"abfnrtv]|[0-3][0-7]{2}|[0-7]{1,2}(?![0-7])|x[0-9a-fA-F]{2}|[uUN]))*+""")
CONSTANTS = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}


def pythonic(raw: str) -> ParsedTurn:
    """The turn is a list of calls, after `<|python_start|>` or not; any other list is an answer."""
    reader = Reader(raw)
    reader.skip_space()
    wrapped = reader.take("<|python_start|>")
    if not wrapped and not _begins_call(raw, reader.at):
        return ParsedTurn(raw)
    calls = _calls(reader)
    if wrapped:
        reader.skip_space()
        reader.expect("<|python_end|>", "the list of calls")
    reader.only_space_left("the list of calls")
    return ParsedTurn("", calls)


def lfm2(raw: str) -> ParsedTurn:
    """LFM2 and LFM2.5: the list stands between `<|tool_call_start|>` and `<|tool_call_end|>`."""
    text, begin, after = raw.partition("<|tool_call_start|>")
    if not begin:
        if "<|tool_call_end|>" in raw:
            raise BadCall("'<|tool_call_end|>' without '<|tool_call_start|>' before it")
        return ParsedTurn(raw)
    reader = Reader(after)
    calls = _calls(reader)
    reader.skip_space()
    reader.expect("<|tool_call_end|>", "the list of calls")
    reader.only_space_left("the calls")
    return ParsedTurn(text.rstrip(), calls)


def _begins_call(raw: str, at: int) -> bool:
    """`[name(`."""
    reader = Reader(raw, at)
    if not reader.take("["):
        return False
    reader.skip_space()
    match = NAME.match(raw, reader.at)
    return match is not None and raw.startswith("(", match.end())


def _calls(reader: Reader) -> tuple[Call, ...]:
    reader.skip_space()
    if not reader.take("["):
        raise BadCall(f"expected a list of calls, [name(key=value)], not {reader.rest()}")
    calls = [_call(reader)]
    reader.skip_space()
    while reader.take(","):
        calls.append(_call(reader))
        reader.skip_space()
    reader.expect("]", "a call")
    return tuple(calls)


def _call(reader: Reader) -> Call:
    name = _name(reader, "the name of a tool")
    reader.expect("(", f"{quoted(name)}")
    arguments: dict[str, Any] = {}
    reader.skip_space()
    while not reader.take(")"):
        if arguments:
            reader.expect(",", "an argument")
        key = _name(reader, f"the name of an argument of '{name}'")
        reader.skip_space()
        reader.expect("=", f"{quoted(key)}")
        if key in arguments:
            raise BadCall(f"the call of '{name}' has {quoted(key)} twice")
        arguments[key] = _value(reader, 1)
        reader.skip_space()
    return Call(name, checked_value(arguments, f"the call of '{name}'"))


def _name(reader: Reader, what: str) -> str:
    reader.skip_space()
    match = NAME.match(reader.text, reader.at)
    if match is None or len(match.group()) > 200:
        raise BadCall(f"expected {what}, not {reader.rest()}")
    reader.at = match.end()
    return match.group()


def _value(reader: Reader, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise BadCall(f"arguments are nested more than {MAX_DEPTH} levels deep")
    reader.skip_space()
    if reader.starts('"') or reader.starts("'"):
        return _text(reader)
    if reader.take("["):
        return _list(reader, depth)
    if reader.take("{"):
        return _dict(reader, depth)
    word = NAME.match(reader.text, reader.at)
    if word is None:
        return number(reader)
    if word.group() not in CONSTANTS:
        raise BadCall(f"a value should be a literal, not {quoted(word.group())}")
    reader.at = word.end()
    return CONSTANTS[word.group()]


def _text(reader: Reader) -> str:
    match = TEXT.match(reader.text, reader.at)
    if match is None:
        raise BadCall(f"a text is not closed: {reader.rest()}")
    if "\\" not in match.group():
        reader.at = match.end()
        return match.group()[1:-1]
    try:
        if ESCAPED.fullmatch(match.group()) is None:
            raise ValueError
        value = ast.literal_eval(match.group())
    except (ValueError, SyntaxError):
        raise BadCall(f"a text has an escape that Python does not know: {quoted(match.group())}") from None
    reader.at = match.end()
    return str(value)


def _list(reader: Reader, depth: int) -> list[Any]:
    values: list[Any] = []
    reader.skip_space()
    while not reader.take("]"):
        if values:
            reader.expect(",", "a value of a list")
        values.append(_value(reader, depth + 1))
        reader.skip_space()
    return values


def _dict(reader: Reader, depth: int) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    reader.skip_space()
    while not reader.take("}"):
        if arguments:
            reader.expect(",", "a value of a dict")
            reader.skip_space()
        if not reader.starts('"') and not reader.starts("'"):
            raise BadCall(f"a key should be a text, not {reader.rest()}")
        key = _text(reader)
        reader.skip_space()
        reader.expect(":", "a key")
        if key in arguments:
            raise BadCall(f"the key {quoted(key)} stands twice")
        arguments[key] = _value(reader, depth + 1)
        reader.skip_space()
    return arguments
