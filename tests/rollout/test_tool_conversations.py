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
from vigneron.rollout.conversations import Conversations, turn_sums
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
    assert turn_sums([talk]).metrics()["turns/tool_calls"] == 1
    assert turn_sums([talk]).metrics()["turns/tool_errors"] == 0


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


THOUGHT = "I may call <tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n2\n</parameter>\n"
THOUGHT += "</function>\n</tool_call>"
R1 = '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n{"a": 1, "b": 2}\n```'
R1 += "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"


def calls_of_turns(name: str, prompt: Any, *turns: str) -> list[int]:
    """The calls that each turn makes, of a model with this template."""
    tokenizer = real_templates.smollm2()
    policy = real_templates.policy_of(tokenizer, real_templates.template(name))
    policy.eos_ids = frozenset(turn_end_ids(tokenizer)[-1:])
    environments = build_environments(options(f"{__name__}:add"), tokenizer)
    assert environments is not None
    talks, start = Conversations(environments, policy, [environments.prepared({"prompt": prompt})], [4000], [7]), 0
    for text in turns:
        ids = (*tokenizer(text, add_special_tokens=False)["input_ids"], *policy.eos_ids)
        talks.ask([Turn(0, start, ids, True)])
        start += len(ids) + len(talks.take([0])[0])
    assert [talk.error for talk in talks.transcripts] == [None]
    return [log["tool_calls"] for log in talks.transcripts[0].logs]


def test_calls_within_reasoning_that_the_prompt_opens_are_not_made() -> None:
    """Qwen3.5's generation prompt ends with `<think>`, before the first turn and after a result."""
    call = f"So:\n</think>\n\n{THOUGHT}"
    assert calls_of_turns("qwen3_5_think", "1 + 2?", THOUGHT) == [0]
    assert calls_of_turns("qwen3_5_think", "1 + 2?", f"{THOUGHT}\n</think>\n\nIt is 3.") == [0]
    assert calls_of_turns("qwen3_5_think", "1 + 2?", call, THOUGHT) == [1, 0]
    assert calls_of_turns("qwen3_5_think", "1 + 2?", call, call, "So:\n</think>\n\nIt is 3.") == [1, 1, 0]


def test_reasoning_that_the_prompt_closes_is_over() -> None:
    assert calls_of_turns("qwen3_5_nothink", "1 + 2?", THOUGHT, "It is 3.") == [1, 0]
    assert calls_of_turns("qwen3_5_nothink", "1 + 2?", f"<think>{THOUGHT}") == [0]
    asked = {"role": "user", "content": "1 + 2?"}
    for beginning, calls in (("Well", [0]), ("Easy.\n</think>\n\n", [1])):
        begun = [asked, {"role": "assistant", "content": beginning}]
        assert calls_of_turns("qwen3_5_think", begun, THOUGHT) == calls


def test_a_template_may_open_reasoning_after_a_question_and_not_after_a_result() -> None:
    assert calls_of_turns("deepseek_r1_distill", "1 + 2?", R1) == [0]
    assert calls_of_turns("deepseek_r1_distill", "1 + 2?", f"So:\n</think>\n\n{R1}", R1, "3.") == [1, 1, 0]


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
