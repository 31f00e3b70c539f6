"""Tools within a rollout's conversations: sampled turns become calls, and results the tokens that are read next."""

from typing import Any

import pytest

from support import real_templates
from vigneron.config import EnvironmentOptions
from vigneron.environments.build import Environments
from vigneron.environments.tools import tool_environment
from vigneron.rollout.conversations import Conversations, transcript_extras, turn_sums
from vigneron.rollout.engine.request import Turn

# A call of `add`, the token that ends it, the beginning of what is read next, and an answer with its end.
TURNS = {
    "qwen2_5": (
        'Sum.\n<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>',
        "<|im_end|>",
        "\n<|im_start|>user\n<tool_response>\n5\n</tool_response>",
        ("It is 5.", "<|im_end|>"),
    ),
    "llama3_1": (
        '{"name": "add", "parameters": {"a": 2, "b": 3}}',
        "<|eot_id|>",
        '<|start_header_id|>ipython<|end_header_id|>\n\n"5"<|eot_id|>',
        ("It is 5.", "<|eot_id|>"),
    ),
    "gptoss": (
        '<|channel|>commentary to=functions.add<|message|>{"a": 2, "b": 3}',
        "<|call|>",
        '<|start|>functions.add to=assistant<|channel|>commentary<|message|>"5"<|end|>',
        ("<|channel|>final<|message|>It is 5.", "<|return|>"),
    ),
    "glm4moe": (
        "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>2</arg_value>\n<arg_key>b</arg_key>\n"
        "<arg_value>3</arg_value>\n</tool_call>",
        "<|observation|>",
        "\n<tool_response>\n5\n</tool_response>",
        ("It is 5.", "<|user|>"),
    ),
}


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: One.
        b: The other.
    """
    return a + b


def drain(items: list[int]) -> int:
    """Count, and take what was counted.

    Args:
        items: What is counted.
    """
    count = len(items)
    items.clear()
    return count


def conversations(name: str) -> tuple[Conversations, Any]:
    """Of one sample, with the template's own tokens."""
    policy = real_templates.policy_of(real_templates.smollm2(), real_templates.template(name))
    made = tool_environment([add, drain], policy.tokenizer.chat_template)
    _, end, _, (_, last) = TURNS[name]
    policy.eos_ids = policy.eos_ids | set(policy.tokenizer.convert_tokens_to_ids([end, last]))
    environments = Environments("tools", made, EnvironmentOptions(max_turns=4), True, made.schemas)
    row = environments.prepared({"prompt": "How much is 2 and 3?"})
    return Conversations(environments, policy, [row], [4000], [7]), policy.tokenizer


@pytest.mark.parametrize("name", TURNS)
def test_a_call_is_run_and_its_result_is_read_next(name: str) -> None:
    talks, tokenizer = conversations(name)
    call, end, read, (answer, last) = TURNS[name]
    turns = [tuple(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in (call + end, answer + last)]
    talks.ask([Turn(0, 0, turns[0], True)])
    (ids,) = talks.take([0])
    assert tokenizer.decode(list(ids)).startswith(read)
    talks.ask([Turn(0, len(turns[0]) + len(ids), turns[1], True)])
    assert talks.take([0]) == [()]
    (talk,) = talks.transcripts
    assert (talk.error, talk.cut) == (None, None)
    assert [message["role"] for message in talk.messages] == ["assistant", "tool", "assistant"]
    assert talk.messages[0]["tool_calls"][0]["function"] == {"name": "add", "arguments": {"a": 2, "b": 3}}
    assert talk.messages[1]["content"] == "5"
    assert talk.messages[2]["content"] == "It is 5."
    metrics = turn_sums(talks.transcripts).metrics()
    assert (metrics["turns/tool_calls"], metrics["turns/tool_errors"]) == (1.0, 0.0)
    assert transcript_extras(talks.transcripts)["turns"] == (2,)


@pytest.mark.parametrize("name", TURNS)
def test_a_broken_call_is_answered_by_an_error(name: str) -> None:
    talks, tokenizer = conversations(name)
    call, end, _, _ = TURNS[name]
    broken = call.removesuffix("</tool_call>") if "</tool_call>" in call else call.removesuffix("}")
    talks.ask([Turn(0, 0, tuple(tokenizer(broken + end, add_special_tokens=False)["input_ids"]), True)])
    (ids,) = talks.take([0])
    assert "error: " in tokenizer.decode(list(ids))
    assert talks.transcripts[0].error is None
    assert talks.transcripts[0].logs == [{"tool_calls": 1, "tool_errors": 1}]


def test_what_a_tool_changes_is_its_own() -> None:
    talks, tokenizer = conversations("qwen2_5")
    call = '<tool_call>\n{"name": "drain", "arguments": {"items": [1, 2, 3]}}\n</tool_call><|im_end|>'
    talks.ask([Turn(0, 0, tuple(tokenizer(call, add_special_tokens=False)["input_ids"]), True)])
    talks.take([0])
    messages = talks.transcripts[0].messages
    assert messages[1]["content"] == "3"
    assert messages[0]["tool_calls"][0]["function"]["arguments"] == {"items": [1, 2, 3]}


def test_special_tokens_within_a_turn_are_not_in_its_text() -> None:
    talks, tokenizer = conversations("qwen2_5")
    texts = ["One.", "One.<|im_start|> Two.", ""]
    turns = [tokenizer(text + "<|im_end|>", add_special_tokens=False)["input_ids"] for text in texts]
    turns.append(turns[1][:-1])  # cut: it has no end token
    raws = [*texts, texts[1]]
    expected = [(raw.replace("<|im_start|>", ""), raw) for raw in raws]
    assert talks._texts([Turn(0, 0, tuple(ids), True) for ids in turns]) == expected
