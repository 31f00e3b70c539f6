"""The tokens between two turns of the model: a reply as its chat template writes it.

What was sampled stays as it is, whatever the template would make of it in history (some leave reasoning out); only what
stands between two answers is written and tokenized, once. Text in a reply that looks like a delimiter is plain text.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from vigneron.policy.chat import Conversation, UnwritableReply, turn_end_ids
from vigneron.policy.message_forms import Message, call_names

MARKS = tuple(map(chr, range(0x100010, 0x100030)))
"""Characters of a private plane in place of contents, to find out where a template writes them."""


def reply_ids(
    tokenizer: Any, messages: Sequence[Message], reply: Sequence[Message], last: int, tools: Any = None
) -> tuple[int, ...]:
    """The tokens of `reply` after a conversation that ends with an answer, up to the beginning of the next answer.

    `last` is the answer's last token: if it is not the one that ends turns, or calls, that of turns is added.
    """
    (ids,) = replies_ids(tokenizer, [Answered(messages, reply, last)], tools)
    if isinstance(ids, UnwritableReply):
        raise ids
    return ids


@dataclass(frozen=True)
class Answered:
    """A conversation that ends with an answer, and the reply to it; `last` is the answer's last token."""

    messages: Sequence[Message]
    reply: Sequence[Message]
    last: int


def replies_ids(
    tokenizer: Any, answered: Sequence[Answered], tools: Any = None
) -> list[tuple[int, ...] | UnwritableReply]:
    """`reply_ids` of several, or why one cannot be written; texts that occur more than once are tokenized once."""
    end, tools_json = turn_end_ids(tokenizer), json.dumps(tools, default=str)
    ids: list[Sequence[int]] = [()] * len(answered)
    closed = [False] * len(answered)
    plain: dict[str, list[int]] = {}
    unwritable: dict[int, UnwritableReply] = {}
    for i, each in enumerate(answered):
        closing = _special(tokenizer, len(tokenizer), each.last)
        shape = _shape(each.messages[-1], each.reply)
        frame = _frame(tokenizer, str(tokenizer.chat_template), *shape, tools_json, closing)
        if frame is not None:
            around = Conversation.of(tokenizer, each.reply)
            text, closed[i] = frame.filled([around.text(n) for n in range(len(each.reply))]), frame.closed
        else:
            around = Conversation.of(tokenizer, [*each.messages, *each.reply], tools)
            try:
                text, closed[i] = around.after(len(each.messages) - 1, closing)
            except UnwritableReply as error:
                unwritable[i] = error
                continue
        if around.mark:
            ids[i] = around.ids(text)
        else:
            plain.setdefault(text, []).append(i)
    encoded = Conversation(tokenizer, ()).encode(list(plain))
    for places, of_text in zip(plain.values(), encoded, strict=True):
        for i in places:
            ids[i] = of_text
    missing = [end if end and e.last not in end and not c else [] for e, c in zip(answered, closed, strict=True)]
    return [unwritable.get(i, (*missing[i], *of_reply)) for i, of_reply in enumerate(ids)]


@lru_cache(maxsize=1024)
def _special(tokenizer: Any, count: int, token: int) -> str:
    """The text of a special token; empty for any other. The tokenizer, of `count` tokens, makes a table every time."""
    added = tokenizer.added_tokens_decoder.get(token)
    return str(added.content) if added is not None and added.special else ""


TO_JSON = json.JSONEncoder(default=str)
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


def _shape(answer: Message, reply: Sequence[Message]) -> tuple[str, str]:
    """All but the contents, as JSON: replies of one shape differ in their texts alone."""
    calls = [{"id": call.get("id"), "name": name} for call, name in _calls(answer)]
    others = [{key: value for key, value in message.items() if key != "content"} for message in reply]
    return TO_JSON.encode(calls), TO_JSON.encode(others)


def _calls(answer: Message) -> list[tuple[Any, str]]:
    return list(zip(answer.get("tool_calls") or (), call_names(answer), strict=True))


@lru_cache(maxsize=256)
def _frame(tokenizer: Any, template: str, calls: str, others: str, tools: str, closing: str) -> _Frame | None:
    """Found by rendering replies at two places of a conversation. None if they differ there, if the template refuses
    them, or if it changes texts by more than the space around them: then each reply is rendered."""
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
    try:
        (text, closed), other = (
            Conversation.of(tokenizer, [*before, *reply], json.loads(tools)).after(len(before) - 1, closing)
            for before in (first, second)
        )
    except UnwritableReply:
        return None
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
