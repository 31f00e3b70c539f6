"""The tokens between two turns of the model: a reply as its chat template writes it.

What was sampled stays as it is, whatever the template would make of it in history (some leave reasoning out); only what
stands between two answers is written and tokenized, once. Text in a reply that looks like a delimiter is plain text.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from vigneron.policy.chat import Conversation, turn_end_ids
from vigneron.policy.message_forms import Message, call_names

MARKS = tuple(map(chr, range(0x100010, 0x100030)))
"""Characters of a private plane in place of contents, to find out where a template writes them."""


def reply_ids(
    tokenizer: Any, messages: Sequence[Message], reply: Sequence[Message], last: int, tools: Any = None
) -> tuple[int, ...]:
    """The tokens of `reply` after a conversation that ends with an answer, up to the beginning of the next answer.

    `last` is the answer's last token: if it is not the one that ends turns, or calls, that of turns is added.
    """
    end = turn_end_ids(tokenizer)
    closing = _special(tokenizer, len(tokenizer), last)
    frame = _frame(tokenizer, str(tokenizer.chat_template), *_shape(messages[-1], reply, tools), closing)
    if frame is not None:
        around = Conversation.of(tokenizer, reply)
        ids = around.ids(frame.filled([around.text(i) for i in range(len(reply))]))
        closed = frame.closed
    else:
        whole = Conversation.of(tokenizer, [*messages, *reply], tools)
        text, closed = whole.after(len(messages) - 1, closing)
        ids = whole.ids(text)
    missing = end if end and last not in end and not closed else []
    return (*missing, *ids)


@lru_cache(maxsize=1024)
def _special(tokenizer: Any, count: int, token: int) -> str:
    """The text of a special token; empty for any other. The tokenizer, of `count` tokens, makes a table every time."""
    added = tokenizer.added_tokens_decoder.get(token)
    return str(added.content) if added is not None and added.special else ""


WRITTEN: dict[str, Callable[[str], str]] = {
    "plain": str,
    "trimmed": str.strip,
    "json": lambda text: json.dumps(text, ensure_ascii=False),
}
"""How templates write a text."""


@dataclass(frozen=True)
class _Frame:
    """What a template writes around the texts of a reply, wherever in a conversation it is."""

    between: tuple[str, ...]
    written: str
    closed: bool
    """Whether the answer ended with calls, closed by its last token."""

    def filled(self, texts: Sequence[str]) -> str:
        parts = [WRITTEN[self.written](text) for text in texts]
        return "".join(part for pair in zip(self.between, [*parts, ""], strict=True) for part in pair)


def _shape(answer: Message, reply: Sequence[Message], tools: Any) -> tuple[str, str, str]:
    """All but the contents, as JSON: replies of one shape differ in their texts alone."""
    calls = [{"id": call.get("id"), "name": name} for call, name in _calls(answer)]
    others = [{key: value for key, value in message.items() if key != "content"} for message in reply]
    return json.dumps(calls, default=str), json.dumps(others, default=str), json.dumps(tools, default=str)


def _calls(answer: Message) -> list[tuple[Any, str]]:
    return list(zip(answer.get("tool_calls") or (), call_names(answer), strict=True))


@lru_cache(maxsize=256)
def _frame(tokenizer: Any, template: str, calls: str, others: str, tools: str, closing: str) -> _Frame | None:
    """Found by rendering replies at two places of a conversation. None if they differ there, or if the template changes
    texts by more than the space around them: then each reply is rendered."""
    answer: dict[str, Any] = {"role": "assistant", "content": "two"}
    if given := json.loads(calls):
        made = [{"id": c["id"], "type": "function", "function": {"name": c["name"], "arguments": {}}} for c in given]
        answer = {"role": "assistant", "content": "", "tool_calls": made}
    kinds = json.loads(others)
    if len(kinds) > len(MARKS):
        return None
    probes = [f' {mark}"\n{mark} ' for mark in MARKS[: len(kinds)]]
    reply = [{**kind, "content": probe} for kind, probe in zip(kinds, probes, strict=True)]
    first = [{"role": "user", "content": "one"}, answer]
    second = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}, *first]
    (text, closed), other = (
        Conversation.of(tokenizer, [*before, *reply], json.loads(tools)).after(len(before) - 1, closing)
        for before in (first, second)
    )
    for written, write in WRITTEN.items():
        texts = [write(probe) for probe in probes]
        if (text, closed) == other and all(text.count(each) == 1 for each in texts):
            between, rest = [], text
            for each in texts:
                head, _, rest = rest.partition(each)
                between.append(head)
            if not any(mark in part for mark in MARKS for part in (*between, rest)):
                return _Frame((*between, rest), written, closed)
    return None
