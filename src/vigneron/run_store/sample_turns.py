"""A sample's conversation with an environment, turn by turn, as pages show it. What is stored is foreign, and may be of
any form."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vigneron.run_store.samples import Sample
from vigneron.values import is_number

MODEL = "assistant"
EXTRAS = (
    "conversation",
    "turns",
    "cut",
    "environment_error",
    "environment_reward",
    "environment_rewards",
    "turn_rewards",
    "opening",
)
"""Of a sample with a conversation; shown with its turns."""
ENDED_EARLY = {
    "length": "the model's last turn was cut by max_new_tokens",
    "context": "the next reply did not fit into the model's context",
    "turns": "environment.max_turns was reached",
}
MOST_TURNS = 400
NOTES = ("reward", "log", "tool_error")
"""Keys of a message that are for people, and not for chat templates."""


@dataclass(frozen=True)
class ToolCall:
    name: str
    arguments: str


@dataclass(frozen=True)
class Turn:
    """A message. `trained`: whether its tokens were trained on; None where none are, as of held-out samples."""

    role: str
    text: str
    model: bool
    trained: bool | None = None
    name: str | None = None
    """Of the tool that answers."""
    thinking: str | None = None
    calls: tuple[ToolCall, ...] = ()
    fault: str | None = None
    """Why its tool calls could not be read."""
    reward: float | None = None
    log: str | None = None


@dataclass(frozen=True)
class SampleTurns:
    """All that is known of a conversation after its prompt."""

    turns: tuple[Turn, ...]
    left_out: int = 0
    """Turns behind the last one shown."""
    ended: str | None = None
    """Why it ended before the environment said so."""
    error: str | None = None
    """What went wrong in the environment: the sample has no reward, and is not trained on."""


def turns_of_sample(sample: Sample) -> SampleTurns | None:
    """None of a sample that is no conversation."""
    messages = sample.extras.get("conversation")
    if not isinstance(messages, list) or not messages:
        return None
    cut, error = sample.extras.get("cut"), sample.extras.get("environment_error")
    trained = None if sample.kind == "eval" else error is None
    return SampleTurns(
        tuple(turns_of(messages[:MOST_TURNS], trained=trained)),
        max(0, len(messages) - MOST_TURNS),
        None if cut is None else ENDED_EARLY.get(str(cut), str(cut)),
        None if error is None else str(error),
    )


def turns_of(messages: Sequence[Any], *, trained: bool | None = None) -> list[Turn]:
    """`trained`: whether the model's turns were."""
    return [_turn(message if isinstance(message, Mapping) else {"content": message}, trained) for message in messages]


def without_notes(completion: Any) -> Any:
    """A completion as methods train on it."""
    if not isinstance(completion, list):
        return completion
    return [{name: value for name, value in message.items() if name not in NOTES} for message in completion]


def _turn(message: Mapping[str, Any], trained: bool | None) -> Turn:
    role, reward, calls, log = (message.get(name) for name in ("role", "reward", "tool_calls", "log"))
    model = role == MODEL
    return Turn(
        role=str(role),
        text=_text(message.get("content")),
        model=model,
        trained=trained and model,
        name=_optional(message.get("name")),
        thinking=_optional(message.get("thinking")),
        calls=tuple(map(_call, calls)) if isinstance(calls, list) else (),
        fault=_optional(message.get("tool_error")),
        reward=reward if is_number(reward) else None,
        log=", ".join(f"{name} {_text(value)}" for name, value in log.items()) if isinstance(log, Mapping) else None,
    )


def _call(given: Any) -> ToolCall:
    function = given.get("function", given) if isinstance(given, Mapping) else given
    if not isinstance(function, Mapping):
        return ToolCall("?", _text(function))
    return ToolCall(str(function.get("name")), _text(function.get("arguments")))


def _text(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, list) and all(
        isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in value
    ):
        return "".join(part["text"] for part in value)
    return json.dumps(value, ensure_ascii=False, default=str)


def _optional(value: Any) -> str | None:
    return None if value in (None, "") else _text(value)
