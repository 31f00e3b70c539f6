"""Turns that are no calls of tools: nothing is repaired, hostile text is a turn or an error, and time is linear."""

import json
import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.real_templates import template
from vigneron.environments.tool_calls import FORMATS, BadCall, Call, CallFormat, ParsedTurn, call_format

BY_NAME = {known.name: known for known, _ in FORMATS}
F = {"x": 1}
OK = '{"name": "f", "arguments": {"x": 1}}'
DEEP = '{"a":' * 40 + "1" + "}" * 40
BROKEN: dict[str, list[tuple[str, str]]] = {
    "hermes": [
        (f"<tool_call>{OK}", "expected '</tool_call>' after the JSON of a call, not the end"),
        (f"{OK}</tool_call>", "'</tool_call>' without '<tool_call>' before it"),
        ('<tool_call>{"name": "f", "arguments": {"x": 1}</tool_call>', "is not valid JSON"),
        (f"<tool_call>{OK}</tool_call> Done.", "text after a call: 'Done.'"),
        (f"<tool_call>[{OK}]</tool_call>", "should be a JSON object with `name` and `arguments`, not a list"),
        ('<tool_call>{"name": "f"}</tool_call>', "the call of 'f' has no `arguments`"),
        ('<tool_call>{"name": "f", "arguments": "{}"}</tool_call>', "should be a JSON object, not a text"),
        ('<tool_call>{"name": 3, "arguments": {}}</tool_call>', "a call needs a `name`, which is a text"),
        ('<tool_call>{"name": "f", "parameters": {}}</tool_call>', "unknown key 'parameters' in a call"),
        ('<tool_call>{"name": "f", "arguments": {"x": 1, "x": 2}}</tool_call>', "a key stands twice"),
        ('<tool_call>{"name": "f", "arguments": {"x": NaN}}</tool_call>', "NaN is no JSON number"),
        ('<tool_call>{"name": "f", "arguments": {"x": 1e999}}</tool_call>', "1e999 is too large"),
        ('<tool_call>{"name": "f", "arguments": {"x": "\\ud800"}}</tool_call>', "half of a surrogate pair"),
        ("<tool_call>{'name': 'f', 'arguments': {}}</tool_call>", "is not valid JSON"),
        (
            '<tool_call>{"name": "f", "arguments": ' + '{"a":' * 40 + "1" + "}" * 41 + "</tool_call>",
            "nested more than 32",
        ),
        ('<tool_call>{"name": "f", "arguments": {"x": ' + "1" * 400 + "}}</tool_call>", "more than 300 digits"),
        ("<tool_call></tool_call>", "is not valid JSON"),
    ],
    "llama3": [
        ('{"name": "f", "parameters": {"x": 1}', "a call is not valid JSON"),
        ('{"name": "f", "arguments": {}}', "unknown key 'arguments'"),
        ('{"name": "f", "parameters": {}} I called it.', "text after a call: 'I called it.'"),
        ('<|python_tag|>brave_search.call(query="x")', "a call is not valid JSON"),
        ("<|python_tag|>", "no call after <|python_tag|>"),
        ("<|python_start|>text", "is not closed by '<|python_end|>'"),
    ],
    "pythonic": [
        ("[f(x=1)", "expected ']' after a call, not the end"),
        ("[f(1)]", "expected the name of an argument of 'f', not '1)]'"),
        ("[f(x=y)]", "a value should be a literal, not 'y'"),
        ("[f(x=__import__('os'))]", "a value should be a literal"),
        ("[f(x='a)]", "a text is not closed"),
        ("[f(x='\\q')]", "an escape that Python does not know"),
        ("[f(x='\\400')]", "an escape that Python does not know"),
        ("[f(x='\\x4')]", "an escape that Python does not know"),
        ("[f(x='\\N{no such name}')]", "an escape that Python does not know"),
        ("[f(x=1, x=2)]", "has 'x' twice"),
        ("[f(x=1)] done", "text after the list of calls: 'done'"),
        ("[f(x=" + "[" * 40 + "]" * 40 + ")]", "nested more than 32 levels"),
        ("[f(x=1+1)]", "expected ',' after an argument, not '+1)]'"),
        ("<|python_start|>[f(x=1)]", "expected '<|python_end|>'"),
    ],
    "mistral": [
        ("[TOOL_CALLS]", "is not valid JSON"),
        (f"[TOOL_CALLS]{OK}", "should be a JSON list of objects, not an object"),
        ("[TOOL_CALLS][]", "should be a JSON list of objects, not an empty list"),
        (f"[TOOL_CALLS][{OK}] x", "text after the list of calls"),
        ('[TOOL_CALLS][{"name": "f", "arguments": {}, "id": "1"}]', "should be nine letters and digits, not '1'"),
        (
            '[TOOL_CALLS][{"name":"f","arguments":{},"id":"abcdefghi"},{"name":"f","arguments":{},"id":"abcdefghi"}]',
            "two calls have the same id",
        ),
    ],
    "mistral_args": [
        ("[TOOL_CALLS]f{}", "the name after [TOOL_CALLS] is not closed by '[ARGS]'"),
        ("[TOOL_CALLS]f[ARGS]3", "the arguments of 'f' should be a JSON object, not a number"),
        ("[TOOL_CALLS]f[ARGS]{} and", "text after a call: 'and'"),
        ("[TOOL_CALLS][ARGS]{}", "a call needs a `name`"),
    ],
    "deepseek_v3": [
        ("<｜tool▁calls▁begin｜>", "no call after"),
        ("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}", "the type of a call should be 'function'"),
        ("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n{}", "is not closed by '\\n```json\\n'"),
        ("<｜tool▁call▁begin｜>x", "without '<｜tool▁calls▁begin｜>'"),
    ],
    "deepseek_v31": [
        ("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}", "expected '<｜tool▁call▁end｜>'"),
        (
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>.",
            "text after the calls",
        ),
    ],
    "phi4": [(f"<|tool_call|>[{OK}]", "expected '<|/tool_call|>' after the list of calls, not the end")],
    "functools": [("functools[1]", "a call should be a JSON object"), (f"functools[{OK}] x", "text after")],
    "granite3": [("<|tool_call|>none", "is not valid JSON")],
    "kimi": [
        ("<|tool_calls_section_begin|><|tool_calls_section_end|>", "expected '<|tool_call_begin|>'"),
        ("<|tool_calls_section_begin|><|tool_call_begin|>f<|tool_call_argument_begin|>{}", "functions.NAME:INDEX"),
    ],
    "qwen_coder": [
        ("<function=f>\n</function>", "'<function=' without '<tool_call>' before it"),
        ("<tool_call>\n<function=f>\n<parameter=x>\n1\n", "the parameter 'x' is not closed by '</parameter>'"),
        ("<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n</tool_call>", "expected '</function>'"),
        ("<tool_call>\n{}\n</tool_call>", "expected '<function=' after <tool_call>"),
        (
            "<tool_call><function=f><parameter=x>1</parameter><parameter=x>1</parameter></function></tool_call>",
            "'x' twice",
        ),
        ("<tool_call>\n<function=f>\n</function>\n</tool_call>\nDone.", "text after a call: 'Done.'"),
    ],
    "glm": [
        ("<tool_call>f", "<tool_call> is not closed by '</tool_call>'"),
        ("<tool_call>f<arg_key>x</arg_key></tool_call>", "expected '<arg_value>' after </arg_key>"),
        ("<tool_call></tool_call>", "a call needs a `name`"),
        ("<tool_call>f</tool_call>.", "text after a call"),
    ],
    "function_gemma": [
        ("<start_function_call>call:f{x:Paris}<end_function_call>", "expected a value, not 'Paris}"),
        ("<start_function_call>call:f{x:1}", "expected '<end_function_call>'"),
        ("<start_function_call>call:f{x:1,x:2}<end_function_call>", "the key 'x' stands twice"),
    ],
    "gemma4": [
        ("<|tool_call>f{}<tool_call|>", "expected 'call:'"),
        ('<|tool_call>call:f{x:<|"|>a}<tool_call|>', "a text is not closed"),
        ("<|tool_call>call:f{x:" + "[" * 40, "nested more than 32 levels"),
        ("<|tool_call>call:f{}<tool_call|>text", "text after a call"),
    ],
    "lfm2": [
        ("<|tool_call_start|>[f()]", "expected '<|tool_call_end|>'"),
        ("<|tool_call_start|>f()<|tool_call_end|>", "expected a list of calls"),
    ],
    "harmony": [
        ("<|channel|>commentary to=functions.f", "a message without <|message|>"),
        ("<|channel|>commentary to=functions.f<|message|>{}<|call|> x", "text after the call, which ends a turn"),
        ("<|channel|>commentary to=browser.f<|message|>{}", "should be to=functions.NAME"),
        ("<|channel|>commentary to=functions.f<|message|>[]", "should be a JSON object, not"),
        ("<|channel|>other<|message|>x", "the channel should be one of"),
        ("<|message|>x", "a message without a channel"),
        ("<|channel|>analysis<|message|>a<|end|>b<|message|>c", "expected '<|start|>assistant' after a message"),
    ],
}


@pytest.mark.parametrize(
    ("name", "raw", "line"), [(name, raw, line) for name, cases in BROKEN.items() for raw, line in cases]
)
def test_nothing_is_repaired(name: str, raw: str, line: str) -> None:
    with pytest.raises(BadCall) as error:
        BY_NAME[name].parse(raw)
    assert line in str(error.value)
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 300


def test_every_format_has_broken_cases() -> None:
    assert set(BROKEN) == set(BY_NAME)


def test_calls_within_reasoning_are_not_made() -> None:
    qwen = call_format(template("qwen3"))
    assert qwen is not None
    call = f"<tool_call>{OK}</tool_call>"
    reasoning = f"<think>\nI could write {call}, or <tool_call> alone.\n</think>\n\n"
    assert qwen.parse(f"{reasoning}No.") == ParsedTurn(f"{reasoning}No.")
    turn = qwen.parse(f"{reasoning}Yes. {call}")
    assert turn == ParsedTurn(f"{reasoning}Yes.", (Call("f", F),))
    assert qwen.parse(f"<think>\n{call}") == ParsedTurn(f"<think>\n{call}")  # cut within it
    assert len(qwen.parse(f"as the prompt opened it</think>{call}").calls) == 1
    assert len(qwen.parse(call).calls) == 1
    two = f"a</think>\n<think>{call}"  # a second block, cut or closed
    assert qwen.parse(two) == ParsedTurn(two)
    assert qwen.parse(f"{two}</think>Yes.") == ParsedTurn(f"{two}</think>Yes.")
    assert len(qwen.parse(f"{two}</think>{call}").calls) == 1


def test_reading_an_escape_does_not_change_the_warnings_of_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warnings.catch_warnings", None)
    assert BY_NAME["pythonic"].parse(r"[f(x='\n')]").calls == (Call("f", {"x": "\n"}),)
    with pytest.raises(BadCall, match="an escape that Python does not know"):
        BY_NAME["pythonic"].parse(r"[f(x='\q')]")


def test_one_call_a_turn_where_the_template_writes_one() -> None:
    llama = call_format(template("llama3_1"))
    assert llama is not None
    two = '{"name": "f", "parameters": {}}; {"name": "f", "parameters": {}}'
    with pytest.raises(BadCall, match="2 calls in one turn: make one at a time"):
        llama.parse(two)
    assert len(BY_NAME["llama3"].parse(two).calls) == 2


MARKS = """
</tool_call> <function=f> </function> <parameter=x> </parameter> <arg_key>x</arg_key> <arg_value> </arg_value>
<|/tool_call|> <|tool_call_end|> <tool_call|> call: <end_function_call> <escape> [ARGS] [CALL_ID] <|start|>assistant
<|message|> <|end|> commentary to=functions.f <think> </think> f( x= [f( )] functools <｜tool▁call▁begin｜>
<｜tool▁sep｜> <｜tool▁call▁end｜> <｜tool▁calls▁end｜> function ```json ``` { } [ ] , : " ' \\ ; ( ) 1 -1 1e9
true null name "name" "arguments" "parameters" {"name":"f", {"name":"f","arguments":{}} {"name":"f","parameters":{}}
<|"|> <|tool_call>call:f{ <|tool_calls_section_begin|> <|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>
"""
# Of every format, of JSON and of Python.
PIECES = sorted({*(mark for _, marks in FORMATS for mark in marks), *MARKS.split(), "\n", " ", "\ud800"})


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=5)), max_size=12), st.sampled_from(sorted(BY_NAME)))
def test_hostile_text_is_a_turn_or_a_bad_call(pieces: list[str], name: str) -> None:
    raw = "".join(pieces)
    for thinking in (None, ("<think>", "</think>")):
        known = CallFormat(name, BY_NAME[name].parser, thinking=thinking)
        with suppress(BadCall):
            turn = known.parse(raw)
            assert all(isinstance(call.name, str) and isinstance(call.arguments, dict) for call in turn.calls)
            json.dumps([dict(call.arguments) for call in turn.calls], allow_nan=False)


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), JSON_VALUES, max_size=3))
def test_all_json_arguments_come_back(arguments: dict[str, Any]) -> None:
    text = json.dumps({"name": "f", "arguments": arguments}, ensure_ascii=False)
    (call,) = BY_NAME["hermes"].parse(f"<tool_call>\n{text}\n</tool_call>").calls
    assert call.arguments == arguments
    inner = json.dumps(arguments, ensure_ascii=False)
    for name, raw in (
        ("mistral", f"[TOOL_CALLS][{text}]"),
        ("mistral_args", f"[TOOL_CALLS]f[ARGS]{inner}"),
        ("phi4", f"<|tool_call|>[{text}]<|/tool_call|>"),
        ("harmony", f"<|channel|>commentary to=functions.f<|message|>{inner}"),
        ("llama3", f'{{"name": "f", "parameters": {inner}}}'),
    ):
        (call,) = BY_NAME[name].parse(raw).calls
        assert call.arguments == arguments


MANY: dict[str, tuple[str, str]] = {
    "hermes": ("", f"<tool_call>{OK}</tool_call>\n"),
    "llama3": ("<|python_tag|>", '{"name": "f", "parameters": {"x": 1}}; '),
    "pythonic": ("[f()", ", f(x=1, y='a')"),
    "lfm2": ("<|tool_call_start|>[f()", ", f(x=[1, 2])"),
    "mistral": (f"[TOOL_CALLS][{OK}", f",{OK}"),
    "mistral_args": ("", '[TOOL_CALLS]f[ARGS]{"x": 1}'),
    "deepseek_v3": (
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}\n```<｜tool▁call▁end｜>\n",
    ),
    "deepseek_v31": ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>"),
    "phi4": (f"<|tool_call|>[{OK}", f",{OK}"),
    "functools": (f"functools[{OK}", f",{OK}"),
    "granite3": (f"<|tool_call|>[{OK}", f",{OK}"),
    "kimi": (
        "<|tool_calls_section_begin|>",
        "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>",
    ),
    "qwen_coder": ("", "<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>\n"),
    "glm": ("", "<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n</tool_call>\n"),
    "gemma4": ("", '<|tool_call>call:f{x:1,y:<|"|>a<|"|>}<tool_call|>'),
    "function_gemma": ("", "<start_function_call>call:f{x:1}<end_function_call>"),
    "harmony": ("", "<|channel|>analysis<|message|>a<|end|><|start|>assistant"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_NAME)
def test_a_turn_of_many_calls_takes_linear_time(name: str) -> None:
    """Twice the text may take three times the time; in the square it takes four times."""

    def cpu_s(size: int) -> float:
        start, call = MANY[name]
        began = time.process_time()
        with suppress(BadCall):
            BY_NAME[name].parse(start + call * (size // len(call)))
        return time.process_time() - began

    half, whole = cpu_s(400_000), cpu_s(800_000)
    assert whole <= 3 * half + 0.3
