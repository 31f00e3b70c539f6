"""Calls of tools in the formats of chat templates: what templates write is read again, and nothing else is."""

import json
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from support.real_templates import names, template
from vigneron.environments.tool_calls import FORMATS, Call, CallFormat, ParsedTurn, call_format
from vigneron.environments.tool_schema import checked_arguments, tool_schema

BY_NAME = {known.name: known for known, _ in FORMATS}
HEADERS = (
    "<|im_start|>assistant\n",
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "<|assistant|>\n",
    "<|turn>model\n",
    "<｜Assistant｜>",
    "<|start|>assistant",
)
ENDS = ("<|im_end|>", "<|eot_id|>", "<｜end▁of▁sentence｜>", "<|call|>", "<|tool_response>", "<turn|>", "<|user|>")


def lookup(city: str, days: int = 1, tags: list[str] | None = None, sure: bool = True) -> str:
    """Look up the weather.

    Args:
        city: The city.
        days: How many days.
        tags: Words.
        sure: Whether.
    """
    return ""


ARGUMENTS: dict[str, Any] = {"city": "Zürich, CH", "days": 3, "tags": ["a", "b c"], "sure": False}
SCHEMA = tool_schema(lookup)
# Templates with tools, by the format of their calls. Others of the package have none.
EXPECTED = {
    "deepseek_r1_distill": "deepseek_v3",
    "deepseekv3": "deepseek_v3",
    "diffusion_gemma": "gemma4",
    "gemma4": "gemma4",
    "gemma4_v2": "gemma4",
    "gemma4_v3": "gemma4",
    "gemma4_v4": "gemma4",
    "gemma4_v5": "gemma4",
    "glm4moe": "glm",
    "gptoss": "harmony",
    "lfm2_2_5": "lfm2",
    "lfm2_2_5_v2": "lfm2",
    "lfm2_2_5_vl": "lfm2",
    "lfm2_v2": "lfm2",
    "llama3_1": "llama3",
    "llama3_2": "llama3",
    "nemotron_3_5_lightning": "qwen_coder",
    "nemotron_3_nano": "qwen_coder",
    "nemotron_3_super": "qwen_coder",
    "nemotron_3_ultra": "qwen_coder",
    "qwen2_5": "hermes",
    "qwen3": "hermes",
    "qwen3_5_nothink": "qwen_coder",
    "qwen3_5_think": "qwen_coder",
    "qwen3_6": "qwen_coder",
    "qwen3_8": "qwen_coder",
    "qwen3_instruct_2507": "hermes",
    "qwen3_vl": "hermes",
}


def test_templates_are_recognised() -> None:
    found = {name: call_format(template(name)) for name in names() if not name.endswith("_training")}
    assert {name: known.name for name, known in found.items() if known is not None} == EXPECTED
    assert call_format(None) is None
    qwen, llama, deepseek = (found[name] for name in ("qwen3", "llama3_1", "deepseekv3"))
    assert qwen is not None
    assert llama is not None
    assert deepseek is not None
    assert (qwen.one_call, qwen.thinking, qwen.writes_calls) == (False, ("<think>", "</think>"), True)
    assert (llama.one_call, llama.thinking) == (True, None)
    assert (qwen.takes_tools, deepseek.takes_tools) == (True, False)
    assert (qwen.end_tokens, llama.end_tokens) == ((), ("<|eom_id|>",))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (
            "{% for t in tools %}{% endfor %}{{ '[TOOL_CALLS]' + call.name + '[ARGS]' + call.arguments }}",
            "mistral_args",
        ),
        ('{{ "[TOOL_CALLS] [" }}{% set out = tool_call.function|tojson %}', "mistral"),
        ("{{ '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + name + '<｜tool▁sep｜>' }}", "deepseek_v31"),
        ("{{ '<|tool|>' + message['tools'] + '<|/tool|>' + '<|end|>' }}", "phi4"),
        ("{{ 'formatted as functools[{\"name\": [function name]}]' }}", "functools"),
        (
            "{{ '<|start_of_role|>system<|end_of_role|>respond with <|tool_call|> and a JSON list' }}",
            "granite3",
        ),
        ("<|tool_call_begin|>{{ id }}<|tool_call_argument_begin|>{{ a | tojson }}<|tool_call_end|>", "kimi"),
        ("<start_function_call>call:{{ name }}{", "function_gemma"),
        ("{{ 'Use exact format: [func_name1(param1=value1), func_name2(...)]' }}", "pythonic"),
        ('{{ "within <tool_call></tool_call> XML tags:\\n<tool_call>\\n{\\"name\\": <function-name>" }}', "hermes"),
        ("{{ '<tool_call>' }}as a list of yaml objects", None),
    ],
)
def test_families_without_a_template_in_the_package(text: str, name: str | None) -> None:
    found = call_format(text)
    assert (found and found.name) == name


def rendered(text: str, messages: list[dict[str, Any]]) -> str:
    (found,), _ = render_jinja_template(
        conversations=[messages], chat_template=text, tools=[SCHEMA], bos_token="<s>", eos_token="</s>"
    )
    return str(found)


def turn_of(text: str, content: str | None, calls: list[dict[str, Any]]) -> str:
    """What a template writes for an assistant's message, from the generation prompt to the end token."""
    message = {"role": "assistant", "content": content, "tool_calls": calls}
    whole = rendered(text, [{"role": "user", "content": "question"}, message]).rpartition("question")[2]
    turn = next(whole.partition(header)[2] for header in HEADERS if header in whole).rstrip("\n")
    return next((turn.removesuffix(end) for end in ENDS if turn.endswith(end)), turn)


def as_calls(known: CallFormat, arguments: list[dict[str, Any]]) -> list[dict[str, Any]]:
    as_text = known.name == "deepseek_v3"  # its template takes JSON as a text
    return [
        {
            "type": "function",
            "id": f"call{number:05d}",
            "function": {"name": "lookup", "arguments": json.dumps(each, ensure_ascii=False) if as_text else each},
        }
        for number, each in enumerate(arguments)
    ]


def typed(call: Call) -> dict[str, Any]:
    return checked_arguments(SCHEMA, call.arguments, call.typed)


@pytest.mark.parametrize("name", EXPECTED)
def test_what_a_template_writes_is_read_again(name: str) -> None:
    known = call_format(template(name))
    assert known is not None
    two = [ARGUMENTS] if known.one_call else [ARGUMENTS, {"city": "Bern"}]
    for arguments in ([ARGUMENTS], [{"city": "Bern"}], two):
        content = None if name == "deepseek_r1_distill" else ""
        turn = known.parse(turn_of(template(name), content, as_calls(known, arguments)))
        assert [typed(call) for call in turn.calls] == arguments
        assert [call.name for call in turn.calls] == ["lookup"] * len(arguments)
        assert turn.text.replace("<think>", "").replace("</think>", "").strip() == ""


WITHOUT_TEXT = ("deepseek_r1_distill", "llama3_1", "llama3_2", "gptoss", "diffusion_gemma")


@pytest.mark.parametrize("name", [name for name in EXPECTED if name not in WITHOUT_TEXT and "gemma4" not in name])
def test_the_text_before_a_call_is_kept(name: str) -> None:
    """Gemma 4 writes it behind the call, which is refused; the others left out write none."""
    known = call_format(template(name))
    assert known is not None
    turn = known.parse(turn_of(template(name), "I shall look.", as_calls(known, [ARGUMENTS])))
    assert turn.text.endswith("I shall look.")
    assert [typed(call) for call in turn.calls] == [ARGUMENTS]


@pytest.mark.parametrize("name", EXPECTED)
def test_an_error_about_a_turn_reaches_the_model(name: str) -> None:
    """In the role that the template writes also where there was no call."""
    known = call_format(template(name))
    assert known is not None
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "question"},
        {"role": "assistant", "content": "broken"},
        {"role": known.error_role, "name": "error", "tool_call_id": "call00001", "content": "error: what is wrong"},
    ]
    assert "error: what is wrong" in rendered(template(name), messages)


F = {"x": 1}
# What models write, by the documentation of families whose templates are not in the package.
WRITTEN: dict[str, list[tuple[str, ParsedTurn]]] = {
    "hermes": [
        ('<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>', ParsedTurn("", (Call("f", F),))),
        (
            'So:\n<tool_call>{"arguments": {"x": "</tool_call>"}, "name": "f"}</tool_call>\n',
            ParsedTurn("So:", (Call("f", {"x": "</tool_call>"}),)),
        ),
    ],
    "llama3": [
        ('{"name": "f", "parameters": {"x": 1}}', ParsedTurn("", (Call("f", F),))),
        ('<|python_tag|>{"type": "function", "name": "f", "parameters": {"x": 1}}', ParsedTurn("", (Call("f", F),))),
        (
            '<|python_tag|>{"name": "f", "parameters": {"x": 1}}; {"name": "g", "parameters": {}}',
            ParsedTurn("", (Call("f", F), Call("g", {}))),
        ),
        ('{"type" : "function", "name": "f", "parameters": {"x": 1}}', ParsedTurn("", (Call("f", F),))),
        ('{"answer": 3}', ParsedTurn('{"answer": 3}')),
        ('{"type": "cat", "name": "Tom"}', ParsedTurn('{"type": "cat", "name": "Tom"}')),
    ],
    "pythonic": [
        (
            '[f(x=1), g(a="b", c=[1, 2.5], d={"k": None})]',
            ParsedTurn("", (Call("f", F), Call("g", {"a": "b", "c": [1, 2.5], "d": {"k": None}}))),
        ),
        ("<|python_start|>[f(x=1)]<|python_end|>", ParsedTurn("", (Call("f", F),))),
        ("[f()]", ParsedTurn("", (Call("f", {}),))),
        (
            r"""[f(x='it\'s \n', y=True, z=false, w=-3)]""",
            ParsedTurn("", (Call("f", {"x": "it's \n", "y": True, "z": False, "w": -3}),)),
        ),
        (
            r"""[f(x='\\ \" \101\7 \x41\u00e9\U0001F600\N{BULLET}')]""",
            ParsedTurn("", (Call("f", {"x": '\\ " A\x07 A\u00e9\U0001f600\u2022'}),)),
        ),
        ("[1, 2]", ParsedTurn("[1, 2]")),
    ],
    "mistral": [
        (
            '[TOOL_CALLS] [{"name": "f", "arguments": {"x": 1}, "id": "abcdefghi"}]',
            ParsedTurn("", (Call("f", F, "abcdefghi"),)),
        ),
        (
            '[TOOL_CALLS][{"name": "f", "arguments": {"x": "[TOOL_CALLS]"}}, {"name": "g", "arguments": {}}]',
            ParsedTurn("", (Call("f", {"x": "[TOOL_CALLS]"}), Call("g", {}))),
        ),
    ],
    "mistral_args": [
        ('[TOOL_CALLS]f[ARGS]{"x": 1}', ParsedTurn("", (Call("f", F),))),
        (
            'I see.[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{"x": 1}[TOOL_CALLS]g[ARGS]{}',
            ParsedTurn("I see.", (Call("f", F, "abcdefghi"), Call("g", {}))),
        ),
    ],
    "deepseek_v3": [
        (
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n"
            '{"x": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
            ParsedTurn("", (Call("f", F),)),
        )
    ],
    "deepseek_v31": [
        (
            'Yes.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"x": 1}<｜tool▁call▁end｜>'
            "<｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            ParsedTurn("Yes.", (Call("f", F), Call("g", {}))),
        )
    ],
    "phi4": [
        ('<|tool_call|>[{"name": "f", "arguments": {"x": 1}}]<|/tool_call|>', ParsedTurn("", (Call("f", F),))),
    ],
    "functools": [('functools[{"name": "f", "arguments": {"x": 1}}]', ParsedTurn("", (Call("f", F),)))],
    "granite3": [('<|tool_call|>[{"name": "f", "arguments": {"x": 1}}]', ParsedTurn("", (Call("f", F),)))],
    "kimi": [
        (
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
            '{"x": 1}<|tool_call_end|><|tool_calls_section_end|>',
            ParsedTurn("", (Call("f", F, "functions.f:0"),)),
        )
    ],
    "qwen_coder": [
        (
            "I look.\n<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n<parameter=y>\na\n\n"
            "b\n</parameter>\n</function>\n</tool_call>",
            ParsedTurn("I look.", (Call("f", {"x": "1", "y": "a\n\nb"}, typed=False),)),
        ),
        (
            "<tool_call>\n<function=f>\n</function>\n</tool_call>",
            ParsedTurn("", (Call("f", {}, typed=False),)),
        ),
    ],
    "glm": [
        (
            "<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
            ParsedTurn("", (Call("f", {"x": "1"}, typed=False),)),
        ),
        (
            "<tool_call>f<arg_key>x</arg_key><arg_value>a b</arg_value></tool_call>",
            ParsedTurn("", (Call("f", {"x": "a b"}, typed=False),)),
        ),
    ],
    "function_gemma": [
        (
            "<start_function_call>call:f{x:1,city:<escape>Paris, {FR}<escape>,deep:{a:[1,<escape>b<escape>]},no:null}"
            "<end_function_call>",
            ParsedTurn(
                "", (Call("f", {"x": 1, "city": "Paris, {FR}", "deep": {"a": [1, "b"]}, "no": None}, typed=False),)
            ),
        ),
        (
            "<start_function_call>call:f{x:<escape>3<escape>}<end_function_call>",
            ParsedTurn("", (Call("f", {"x": "3"}, typed=False),)),
        ),
    ],
    "gemma4": [
        (
            '<|tool_call>call:f{x:1,ok:true,s:<|"|>a:b<|"|>}<tool_call|>',
            ParsedTurn("", (Call("f", {"x": 1, "ok": True, "s": "a:b"}),)),
        ),
    ],
    "lfm2": [("Well.<|tool_call_start|>[f(x=1)]<|tool_call_end|>", ParsedTurn("Well.", (Call("f", F),)))],
    "harmony": [
        (
            "<|channel|>analysis<|message|>Need f.<|end|><|start|>assistant<|channel|>commentary to=functions.f "
            '<|constrain|>json<|message|>{"x": 1}<|call|>',
            ParsedTurn("", (Call("f", F),), "Need f."),
        ),
        (' to=functions.f<|channel|>commentary json<|message|>{"x": 1}', ParsedTurn("", (Call("f", F),))),
        (
            "<|channel|>analysis<|message|>Easy.<|end|><|start|>assistant<|channel|>final<|message|>42<|return|>",
            ParsedTurn("42", thinking="Easy."),
        ),
    ],
}


@pytest.mark.parametrize(
    ("name", "raw", "turn"), [(name, raw, turn) for name, cases in WRITTEN.items() for raw, turn in cases]
)
def test_what_models_write_is_read(name: str, raw: str, turn: ParsedTurn) -> None:
    assert BY_NAME[name].parse(raw) == turn


def test_every_format_has_cases() -> None:
    assert set(WRITTEN) == set(BY_NAME)


@pytest.mark.parametrize("name", BY_NAME)
def test_a_turn_without_marks_is_an_answer(name: str) -> None:
    for raw in ("", "The answer is 42.", "a < b and {c} [d]\n\n(e)"):
        assert BY_NAME[name].parse(raw) == ParsedTurn(raw)
