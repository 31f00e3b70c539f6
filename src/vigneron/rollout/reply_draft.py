"""A reply of an environment before it is tokenized: its longest texts are cut until it fits."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from vigneron.environments.reply import Reply
from vigneron.errors import UserError
from vigneron.policy.chat import UnwritableReply
from vigneron.policy.message_forms import Message
from vigneron.policy.reply_tokens import Answered, replies_ids

K = TypeVar("K")

SHORTENED = "\n[the rest is cut]"
LONGEST_TOKEN = 32
"""Characters: a reply that is longer by this measure is cut before it is tokenized."""


@dataclass
class Draft:
    """A reply whose texts may have to be cut."""

    given: Sequence[Message]
    last: int
    """The last token of the turn before it."""
    kept: list[int]
    """Characters of each text."""

    @classmethod
    def of(cls, reply: Reply, last: int, most: int) -> "Draft":
        """`most` are the tokens that it may have."""
        given: list[Any] = list(reply.messages)
        return cls(given, last, [min(len(message["content"]), most * LONGEST_TOKEN) for message in given])

    @property
    def is_cut(self) -> bool:
        return self.kept != [len(message["content"]) for message in self.given]

    def messages(self) -> list[Message]:
        return [
            message if length == len(text) else {**message, "content": text[:length] + SHORTENED * (length > 0)}
            for message, length in zip(self.given, self.kept, strict=True)
            for text in [message["content"]]
        ]

    def shorten(self, tokens: int, most: int) -> bool:
        """Cut the longest text, because the reply has so many tokens. False if there are too many messages: they do
        not fit without any text."""
        longest = max(range(len(self.kept)), key=self.kept.__getitem__)
        if self.kept[longest]:
            self.kept[longest] = min(self.kept[longest] - 1, self.kept[longest] * most // tokens)
            return True
        if len(self.kept) == 1:
            raise UserError(
                f"environment.max_reply_tokens: the chat template alone takes {tokens} tokens of a reply: "
                f"set it above {most}"
            )
        return False


def drafts_ids(
    tokenizer: Any,
    drafts: Mapping[K, Draft],
    conversation: Callable[[K], Sequence[Message]],
    most: int,
    tools: Any = None,
) -> tuple[dict[K, tuple[int, ...]], dict[K, str]]:
    """The tokens of each draft behind its conversation, its longest texts cut if they are more than `most`; and why
    others cannot be written. One of many messages, as of a turn with many calls, may still have more."""
    ids: dict[K, tuple[int, ...]] = {}
    unwritable: dict[K, str] = {}
    left = list(drafts)
    while left:
        answered = [Answered(conversation(key), drafts[key].messages(), drafts[key].last) for key in left]
        for key, written in zip(left, replies_ids(tokenizer, answered, tools), strict=True):
            if isinstance(written, UnwritableReply):
                unwritable[key] = str(written)
            else:
                ids[key] = written
        long = [key for key in left if key in ids and len(ids[key]) > most]
        left = [key for key in long if drafts[key].shorten(len(ids[key]), most)]
    return ids, unwritable
