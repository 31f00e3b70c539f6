"""Tools in the rollout: a model that calls them reads their results, in its template's own format."""

import asyncio
from typing import Any

import pytest
import torch

from support import real_templates
from vigneron.config import ToolsEnvironmentConfig
from vigneron.environments.build import build_environments
from vigneron.errors import UserError
from vigneron.policy.chat import turn_end_ids
from vigneron.rollout.conversations import Conversations, transcript_metrics
from vigneron.rollout.engine.request import Turn


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: One.
        b: The other.
    """
    return a + b


async def slow_add(a: int, b: int) -> int:
    """Add two numbers, after a while.

    Args:
        a: One.
        b: The other.
    """
    await asyncio.sleep(0)
    return a + b


def options(*tools: str) -> ToolsEnvironmentConfig:
    return ToolsEnvironmentConfig.model_validate({"kind": "tools", "tools": list(tools), "max_turns": 4})


# What a model of the family writes to call add(1, 2).
CALLS = {
    "qwen2_5": '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>',
    "qwen3": '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>',
    "llama3_1": '{"name": "add", "parameters": {"a": 1, "b": 2}}',
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("tool", ["add", "slow_add"])
def test_a_call_is_answered_in_the_templates_format(name: str, tool: str) -> None:
    tokenizer = real_templates.smollm2()
    policy = real_templates.policy_of(tokenizer, real_templates.template(name))
    policy.eos_ids = frozenset(turn_end_ids(tokenizer)[-1:])
    environments = build_environments(options(f"{__name__}:{tool}"), tokenizer)
    assert environments is not None
    row = environments.prepared({"prompt": "How much is 1 + 2?"})
    assert row["tools"][0]["function"]["name"] == tool
    talks = Conversations(environments, policy, [row], [1000], [7])

    def turn(text: str, start: int) -> Turn:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        return Turn(0, start, (*ids, *policy.eos_ids), True)

    first = turn(CALLS[name].replace("add", tool), 0)
    talks.ask([first])
    (reply,) = talks.take([0])
    text = tokenizer.decode(list(reply))
    assert "3" in text
    said = tokenizer.apply_chat_template(
        [*row["prompt"], *talks.transcripts[0].messages], tools=row["tools"], add_generation_prompt=True, tokenize=False
    )
    assert said.endswith(text)
    talks.ask([turn("It is 3.", len(first.ids) + len(reply))])
    assert talks.take([0]) == [()]
    talk = talks.transcripts[0]
    roles = [message["role"] for message in talk.messages]
    assert roles == ["assistant", "tool", "assistant"]
    assert talk.messages[0]["tool_calls"][0]["function"] == {"name": tool, "arguments": {"a": 1, "b": 2}}
    assert talk.error is None
    assert transcript_metrics([talk])["turns/tool_calls"] == 1
    assert transcript_metrics([talk])["turns/tool_errors"] == 0


@pytest.mark.parametrize("name", CALLS)
def test_a_bad_call_comes_back_as_a_message(name: str) -> None:
    tokenizer = real_templates.smollm2()
    policy = real_templates.policy_of(tokenizer, real_templates.template(name))
    policy.eos_ids = frozenset(turn_end_ids(tokenizer)[-1:])
    environments = build_environments(options(f"{__name__}:add"), tokenizer)
    assert environments is not None
    for text in (CALLS[name].replace("add", "multiply"), CALLS[name].replace('"b"', '"c"')):
        talks = Conversations(environments, policy, [environments.prepared({"prompt": "x"})], [1000], [7])
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        talks.ask([Turn(0, 0, (*ids, *policy.eos_ids), True)])
        (reply,) = talks.take([0])
        assert "error: " in tokenizer.decode(list(reply))
        assert talks.transcripts[0].logs == [{"tool_calls": 1, "tool_errors": 1}]


def test_a_template_without_calls_is_refused() -> None:
    tokenizer = real_templates.smollm2()
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    with pytest.raises(UserError, match="the model's chat template has no known format of tool calls"):
        build_environments(options(f"{__name__}:add"), tokenizer)


def test_a_model_of_no_size_may_talk_to_tools() -> None:
    """With random weights a turn hardly ever is a call: the conversation ends after it."""
    from vigneron.core.draws import Sampling
    from vigneron.rollout.on_policy import OnPolicy

    tokenizer = real_templates.smollm2()
    policy = real_templates.policy_of(tokenizer, real_templates.template("qwen2_5"))
    environments: Any = build_environments(options(f"{__name__}:add"), tokenizer)
    rollout = OnPolicy(policy, Sampling(), 4, group_size=2, environments=environments)
    batch = rollout([{"prompt": "How much is 1 + 2?"}])
    assert batch.samples.extras["turns"] == (1, 1)
    assert torch.isfinite(batch.samples.behaviour_BT).all()


@pytest.mark.parametrize(("tools", "given", "calls"), [("slow_add", None, None), ("add", None, 64), ("slow_add", 3, 3)])
def test_calls_are_limited_where_they_take_threads(tools: str, given: int | None, calls: int | None) -> None:
    tokenizer = real_templates.smollm2()
    tokenizer.chat_template = real_templates.template("qwen2_5")
    config = options(f"{__name__}:{tools}").model_copy(update={"concurrency": given})
    environments = build_environments(config, tokenizer)
    assert environments is not None
    assert environments.options.concurrency == calls
