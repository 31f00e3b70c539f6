"""Warnings about a step's conversations: environments that fail, tools that fail, turns that are cut."""

from collections import Counter
from typing import Any

from vigneron.batch import Batch
from vigneron.config import Config
from vigneron.rollout.conversations import CONVERSATION, ERROR

CUT_SHARE = 0.5
LEAST_CALLS = 4
"""Tool calls of a step, all of which fail, before a warning."""
LONGEST_ERROR = 200
"""Characters of a tool's error that are shown."""


def conversation_warnings(batch: Batch, config: Config) -> dict[str, str]:
    """Texts by subject; none for samples without an environment."""
    if config.environment is None or CONVERSATION not in batch.samples.extras:
        return {}
    texts = {
        "environment": _failed(batch.samples.extras[ERROR], config.reward.missing_limit),
        "tools": _failing_tools(batch.samples.extras[CONVERSATION]),
        "turn length": _cut_turns(batch.samples.extras["cut"], config) if config.environment.max_turns > 1 else None,
        "context": _no_room(batch.samples.extras["cut"]),
    }
    return {about: text for about, text in texts.items() if text is not None}


def _failed(errors: tuple[str | None, ...], limit: float) -> str | None:
    failures = Counter(error for error in errors if error is not None)
    if not failures:
        return None
    ((most_frequent, _),) = failures.most_common(1)
    return (
        f"the environment failed in {failures.total()} of {len(errors)} conversations of this step, most often because "
        f"it {most_frequent}. They have no reward, and are left out of the update; if more than {limit:.0%} of a "
        "run's conversations fail (reward.missing_limit), it stops"
    )


def _failing_tools(conversations: tuple[list[dict[str, Any]] | None, ...]) -> str | None:
    """Where every call of the step failed: the tool, its schema or the model's way of calling is wrong. A
    demonstration has no conversation."""
    messages = [message for conversation in conversations for message in conversation or ()]
    logs = [log for message in messages if "tool_calls" in (log := message.get("log", {}))]
    calls, errors = (sum(log[name] for log in logs) for name in ("tool_calls", "tool_errors"))
    if calls < LEAST_CALLS or errors < calls:
        return None
    answers = Counter(m["content"] for m in messages if m["role"] != "assistant")
    shown = f", most often with {answers.most_common(1)[0][0][:LONGEST_ERROR]!r}" if answers else ""
    return (
        f"all {calls} tool calls of this step failed{shown}: the model reads that and goes on. Check the tool if it "
        "raises; calls in a wrong format become rarer with an SFT on right ones"
    )


def _cut_turns(cut: tuple[str | None, ...], config: Config) -> str | None:
    count = cut.count("length")
    if count < CUT_SHARE * len(cut):
        return None
    return (
        f"in {count} of {len(cut)} conversations of this step a turn of the model is cut at max_new_tokens="
        f"{config.max_new_tokens}, which ends the conversation: increase it, or set `sampling.stop` to a string that "
        'ends a turn, such as ["\\n"]'
    )


def _no_room(cut: tuple[str | None, ...]) -> str | None:
    count = cut.count("context")
    if count < CUT_SHARE * len(cut):
        return None
    return (
        f"in {count} of {len(cut)} conversations of this step the next reply did not fit into the model's context, "
        "which ends the conversation: shorten replies (environment.max_reply_tokens) or turns (max_new_tokens), or use "
        "a model with a longer context"
    )
