"""The interface of environments: a conversation goes in, a reply comes out.

An environment is a class, made once for each sample as `Class(row, seed, **options)`, whose `reply(messages)` answers
the model's last turn; or a function `reply(messages, row, seed, **options)`. Either may be async. `messages` is the
conversation so far, the row's prompt first; `seed` is a whole number drawn from (seed, step, sample).

A class may have a method `cut()`, called when `max_turns`, a turn's length or the context ends a conversation. It
returns a last `Reply(done=True)`, whose reward is added to that of the last turn. A method `read_turn(raw, text)` turns
what was sampled into the assistant's message, if that should have more than a content, such as tool calls: `raw` has
special tokens, `text` has none. A static or class method `check_options(**options)` is called before a run, and by
`vigneron validate`: it raises if they are wrong.
"""

import json
import math
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from vigneron.errors import first_line
from vigneron.policy.message_forms import Message
from vigneron.values import LARGEST_FLOAT32

ROLES = ("user", "system", "tool")
LONGEST_LOG = 20_000
"""Characters."""
FEW, SHORT, LARGEST = 8, 100, 2**63
"""Entries of a dict, characters of its texts and size of its numbers that are never more than `LONGEST_LOG` as JSON."""


@dataclass(frozen=True)
class Reply:
    """An environment's answer to the model's turn."""

    messages: str | Sequence[Message] = ()
    """What the model reads next: messages, or the text of a user's message. Not read if the conversation is over."""
    reward: float | None = None
    """What the turn earned; None is nothing. With `reward: {kind: environment}` a sample's reward is their sum."""
    done: bool = False
    """Whether the conversation is over."""
    log: Mapping[str, Any] = field(default_factory=dict)
    """Figures and texts of the turn, kept with the sample. None is a figure that this conversation does not have."""


class Environment(Protocol):
    def reply(self, messages: list[Message]) -> Reply | str | Awaitable[Reply | str]: ...


class BadReply(Exception):
    """An environment's answer that cannot be used; the text says why, and follows "the environment" or "it"."""

    def __init__(self, why: str) -> None:
        super().__init__(f"gave no valid reply: {why}")


def checked_reply(given: Any) -> Reply:
    """The reply, its messages as a list; a text is a reply without reward after which the conversation goes on."""
    if isinstance(given, str):
        given = Reply(given)
    if not isinstance(given, Reply):
        raise BadReply(f"a Reply or a text is needed, not {type(given).__name__}")
    if str(given.done) not in ("True", "False"):  # numpy's are fine
        raise BadReply(f"`done` should be True or False, not {given.done!r}")
    done = bool(given.done)
    return Reply(
        () if done else checked_messages(given.messages), checked_reward(given.reward), done, checked_log(given.log)
    )


def checked_reward(given: Any) -> float | None:
    if given is None:
        return None
    try:
        reward = float(given)
    except Exception:  # whatever an object of the user's does
        raise BadReply(f"`reward` should be a number or None, not {type(given).__name__}") from None
    if isinstance(given, str | bytes) or not abs(reward) <= LARGEST_FLOAT32:
        raise BadReply(f"`reward` should be a finite number or None, not {given!r}")
    return reward


def checked_messages(given: Any) -> tuple[Message, ...]:
    messages = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if not isinstance(messages, Sequence) or not messages:
        raise BadReply("`messages` should be a text or a list of messages, and not empty unless `done`")
    return tuple(_message(message) for message in messages)


def _message(given: Any) -> Message:
    if not isinstance(given, Mapping) or not isinstance(given.get("content"), str):
        raise BadReply(f"a message should have a role and a content, which is a text, not {type(given).__name__}")
    if given.get("role") not in ROLES:
        raise BadReply(f"a message's role should be one of {', '.join(ROLES)}, not {given.get('role')!r}")
    message: Message = _plain(given, "a message")
    return message


OWN_FIGURES = ("mean", "cut", "failed")
"""Of the metrics `turns/…`."""


def checked_log(given: Any) -> dict[str, Any]:
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise BadReply("`log` should be a dict with texts as keys")
    if taken := next((name for name in given if name in OWN_FIGURES or name.startswith("reward/")), None):
        raise BadReply(f"`log` may not have the name {taken!r}: `turns/{taken}` is a figure of every run")
    log: dict[str, Any] = _plain(dict(given), "`log`", LONGEST_LOG)
    return log


def plain_number(value: Any) -> Any:
    """numpy's and torch's numbers as Python's. Raises for other objects."""
    if not callable(getattr(value, "item", None)):
        raise TypeError(f"a value of type {type(value).__name__}")
    return value.item()


TO_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=plain_number)


def _is_short(value: Any) -> bool:
    """Whether JSON has it as it is, in few characters."""
    kind = type(value)
    if kind is str:
        return len(value) <= SHORT and value.isascii()
    if kind is int or kind is float:
        return -LARGEST < value < LARGEST
    return kind is bool or value is None


def _plain(given: Any, what: str, most: float = math.inf) -> Any:
    """As JSON has it, in at most so many characters: what is kept with the sample, and written into a prompt."""
    if type(given) is dict and len(given) <= FEW and all(type(key) is str for key in given):
        parts = [*given, *given.values()]
        if all(map(_is_short, parts)):
            return dict(given)
    try:
        text = TO_JSON.encode(given)
        text.encode()  # no half of a pair of surrogates
        plain = json.loads(text)
    except Exception as error:  # a cycle, an object, a depth
        raise BadReply(f"{what} cannot be written as JSON: {first_line(error)}") from None
    if len(text) > most:
        raise BadReply(f"{what} should have at most {most} characters")
    return plain
