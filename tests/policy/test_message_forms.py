"""Content parts and tool calls: written where the template can write them, refused in a line elsewhere."""

import json
from typing import Any

import pytest

from support.real_templates import policy_of, smollm2, template
from vigneron.data.formats import is_conversation, with_prompts_and_answers
from vigneron.data.prompts import completion_text, prompts_token_ids
from vigneron.errors import UserError
from vigneron.policy.message_forms import are_messages, message_fault, writable
from vigneron.rollout.demonstrations import demonstrations
from vigneron.rollout.pairs import sides_of
from vigneron.rollout.recorded import recorded_texts

CALL = {"id": "callnum01", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Paris"}}}
AS_TEXT = {**CALL, "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "The weather", "parameters": {}}}


def called(call: Any, content: Any = None) -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": content, "tool_calls": [call]},
        {"role": "tool", "name": "get_weather", "tool_call_id": "callnum01", "content": "sunny"},
        {"role": "assistant", "content": "It is sunny."},
    ]


def parts(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


def learned(name: str, messages: Any, **columns: Any) -> list[str]:
    policy = policy_of(smollm2(), template(name))
    (row,) = with_prompts_and_answers([{"messages": messages, **columns}], "mine")
    (found,) = demonstrations(policy, [row], of="mine")
    return [policy.tokenizer.decode(found.ids[start:stop]) for start, stop in found.spans]


QWEN = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call><|im_end|>'


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("qwen2_5", QWEN),
        ("qwen3", QWEN),
        ("llama3_1", '{"name": "get_weather", "parameters": {"city": "Paris"}}<|eot_id|>'),
        (
            "gptoss",
            ' to=functions.get_weather<|channel|>commentary json<|message|>{"city": "Paris"}<|call|>',
        ),
        (
            "deepseekv3",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
            '{"city": "Paris"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>',
        ),
    ],
)
@pytest.mark.parametrize("call", [CALL, AS_TEXT])  # transformers' form, and OpenAI's
def test_tool_calls_are_trained_as_the_template_writes_them(name: str, first: str, call: Any) -> None:
    trained = learned(name, called(call))
    assert trained[0] == first
    assert "It is sunny." in trained[1]


WITH_NONE = """{{ 'Call functions. None is required; "type" is `object`.\\n' }}{% for m in messages %}{{ m.role }}:
{%- if m.tool_calls %}{% for c in m.tool_calls %}CALL {{ c.function.name }} {{ c.function.arguments | tojson }}
{%- endfor %}{% endif %} CONTENT<|im_end|>
{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"""


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        ("{{ m.content or '' }}", None),
        ("{{ m.content if m.content is not none else 'None' }}", ""),
        ("{{ m.content }}", ""),
    ],
)
def test_a_template_may_contain_the_word_none(content: str, kept: str | None) -> None:
    """But not write it for a missing content."""
    policy = policy_of(smollm2(), WITH_NONE.replace("CONTENT", content))
    (row,) = with_prompts_and_answers([{"messages": called(CALL)}], "mine")
    (found,) = demonstrations(policy, [row], of="mine")
    text = policy.tokenizer.decode(found.ids)
    assert 'CALL get_weather {"city": "Paris"}' in text
    assert text.count("None") == 1
    (form,) = writable(policy.tokenizer, [called(CALL)[1]])
    assert form["content"] == kept


@pytest.mark.parametrize("arguments", [{"n": 3}, {}, {"days": [1, 2]}, {"city": "Paris", "exact": True}])
@pytest.mark.parametrize("name", ["qwen2_5", "qwen3", "llama3_1", "gptoss"])
def test_arguments_of_every_kind_are_trained(name: str, arguments: dict[str, Any]) -> None:
    trained = learned(name, called({**CALL, "function": {"name": "get_weather", "arguments": arguments}}))
    assert json.dumps(arguments) in trained[0]
    assert trained[0].endswith({"llama3_1": "<|eot_id|>", "gptoss": "<|call|>"}.get(name, "</tool_call><|im_end|>"))
    assert "sunny" not in trained[0]


def test_tools_of_pairs_and_recorded_samples_and_as_json_text_are_written() -> None:
    policy = policy_of(smollm2(), template("qwen3"))
    row = {"prompt": called(CALL)[:1], "completion": "Sunny.", "chosen": "Sunny.", "rejected": "Rain."}
    for tools in ([TOOL], json.dumps([TOOL])):
        texts = demonstrations(policy, sides_of([{**row, "tools": tools}])) + recorded_texts(
            policy, [{**row, "tools": tools}]
        )
        assert all("The weather" in policy.tokenizer.decode(text.ids) for text in texts)
    with pytest.raises(UserError, match="`tools` must be a list of objects, or its JSON text"):
        demonstrations(policy, sides_of([{**row, "tools": "hammer"}]))


def test_a_result_is_not_trained_and_tools_are_written() -> None:
    policy = policy_of(smollm2(), template("qwen3"))
    (row,) = with_prompts_and_answers([{"messages": called(CALL), "tools": [TOOL]}], "mine")
    (found,) = demonstrations(policy, [row])
    text = policy.tokenizer.apply_chat_template(called(CALL), tools=[TOOL], tokenize=False)
    assert policy.tokenizer.decode(found.ids) == text.removesuffix("\n")
    assert not any("sunny\n</tool_response>" in part for part in learned("qwen3", called(CALL), tools=[TOOL]))
    (asked,) = prompts_token_ids(policy.tokenizer, [called(CALL)[:1]], rows=[{"tools": [TOOL]}])
    assert "The weather" in policy.tokenizer.decode(asked)
    with pytest.raises(UserError, match=r"^row 1 of mine: the model's chat template does not write `tools`"):
        learned("gemma", called(CALL)[:1] + called(CALL)[3:], tools=[TOOL])


@pytest.mark.parametrize(
    ("name", "messages", "line"),
    [
        ("gemma", called(CALL), "turn 2 has tool calls, which the model's chat template cannot write"),
        ("phi3", called(CALL), "turn 2 has tool calls, which the model's chat template cannot write"),
        # R1's template leaves them out next to a content.
        ("deepseek_r1_distill", called(CALL, "I look."), "does not write the tool calls of turn 2"),
        (
            "qwen2_5",
            [{"role": "user", "content": parts("Hi")}, {"role": "assistant", "content": "Ho"}],
            "turn 1 has content parts, which the model's chat template cannot write",
        ),
        (
            "gemma3",
            [{"role": "user", "content": [{"type": "image"}]}, {"role": "assistant", "content": "Ho"}],
            "turn 1 has a content part of type 'image': only text is supported",
        ),
        (
            "qwen2_5",
            called({**CALL, "function": {"name": "get_weather", "arguments": "Paris"}}),
            "turn 2: the arguments of the tool call 'get_weather' are not a JSON object",
        ),
    ],
)
def test_what_a_template_cannot_write_is_refused_in_a_line(name: str, messages: Any, line: str) -> None:
    with pytest.raises(UserError, match=f"^row 1 of mine: .*{line}") as caught:
        learned(name, messages)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["gemma3", "qwen2_5_vl", "llava_next"])
def test_parts_are_trained_as_their_text(name: str) -> None:
    as_text = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho, you."}]
    in_parts = [{**message, "content": parts(message["content"])} for message in as_text]
    assert learned(name, in_parts) == learned(name, as_text)
    assert "Ho, you." in learned(name, as_text)[0]


def test_rows_with_parts_and_calls_are_read() -> None:
    assert is_conversation(called(CALL))
    assert not is_conversation([{"role": "user", "content": None}])
    assert not is_conversation([{"role": "user", "content": []}])
    assert not is_conversation([{"role": "assistant", "content": None, "tool_calls": [{"name": 3}]}])
    (row,) = with_prompts_and_answers([{"messages": called(CALL)[:2]}], "mine")
    assert json.loads(row["answer"]) == CALL["function"]
    assert completion_text([{"role": "assistant", "content": parts("a")}]) == "a"


@pytest.mark.parametrize("arguments", ["{a:1}", "[1]", ""])
def test_arguments_that_are_no_json_object_are_refused_in_every_form(arguments: str) -> None:
    """A template that takes them as text wrote them as they are."""
    tokenizer = smollm2()
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}{{ c.function.name }}"
        "{{ c.function.arguments }}{% endfor %}<|im_end|>{% endfor %}"
    )
    call: dict[str, Any] = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "tool_calls": [call]}]
    with pytest.raises(UserError, match="turn 2: the arguments of the tool call 'f' are not a JSON object"):
        writable(tokenizer, messages)
    call["function"] = {"name": "f", "arguments": '{"a": 1}'}
    assert writable(tokenizer, messages) == messages


USER = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("turn", "fault"),
    [
        ("hi", 'is no object: give {"role": …, "content": …}'),
        (
            {"from": "gpt", "value": "x"},
            "has ShareGPT's keys: rename `from` to `role` (human: user, gpt: assistant) and",
        ),
        ({"content": "x"}, "has no `role`"),
        ({"role": 3, "content": "x"}, "has a `role` that is no text"),
        ({"role": "assistant"}, "has no `content`"),
        ({"role": "assistant", "content": 3}, "has a `content` that is neither a text nor a list of parts"),
        ({"role": "assistant", "content": []}, "has an empty list as `content`"),
        ({"role": "assistant", "content": [{"text": "x"}]}, "has a content part without a `type`"),
        ({"role": "assistant", "content": "", "tool_calls": [{}]}, "has `tool_calls` that are no list of functions"),
    ],
)
def test_the_fault_of_a_message_names_its_turn(turn: Any, fault: str) -> None:
    assert not are_messages([USER, turn])
    assert message_fault([USER, turn], "messages").startswith(f"turn 2 of messages {fault}")


def test_a_part_without_text_is_named() -> None:
    part = [{"role": "user", "content": [{"type": "text"}]}]
    with pytest.raises(UserError, match=r"^turn 1 has a content part of type 'text' without `text`: add it$"):
        writable(None, part)
