"""Where the text of a conversation is not what its messages lead one to expect: answers that the chat template does not
write, and messages that seem to be written by it already."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from vigneron.data.formats import answered, conversation_of, is_continued
from vigneron.data.pairs import SIDES
from vigneron.data.prompts import Row, prompt_of
from vigneron.policy.assistant_spans import AssistantSpans
from vigneron.policy.chat import Conversation
from vigneron.policy.chat_template import render
from vigneron.policy.message_forms import as_parts, message_text, needs_parts

REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
THINK_TAG = re.compile(r"</?think(?:ing)?>")
SHOWN = 40
"""Characters of a text that a note quotes."""


def template_notes(tokenizer: Any, row: Row, reads: str) -> list[str]:
    """`reads`: what the method reads of a row."""
    if reads not in ("demonstrations", "pairs"):
        return _special_text(tokenizer, row["prompt"], row.get("tools"))
    rows = [answered(prompt_of(row), row[side]) for side in SIDES] if reads == "pairs" else [row]
    special = [_special_text(tokenizer, conversation_of(each)[0], row.get("tools")) for each in rows]
    return [*next(filter(None, special), ()), *trained_text_notes(tokenizer, row)]


def _special_text(tokenizer: Any, messages: Sequence[Mapping[str, Any]], tools: Any) -> list[str]:
    token = Conversation.of(tokenizer, messages, tools).special_text()
    if token is None:
        return []
    return [
        f"a message contains {_quoted(token)}, a special token of the model, which is taken as plain text: if the chat "
        "template has been applied already, give the whole text as `prompt` and `completion`"
    ]


def trained_text_notes(tokenizer: Any, row: Row) -> list[str]:
    """Notes about a conversation with answers; none if all of it is trained. Of a pair, about the chosen answer."""
    messages, first = conversation_of(answered(prompt_of(row), row["chosen"]) if row.get("chosen") else row)
    talk = Conversation.of(tokenizer, messages, row.get("tools"))
    turns = [turn for turn in range(first, len(messages)) if messages[turn]["role"] == "assistant"]
    answers = None if is_continued(messages, first) else talk.assistant_spans(turns)
    notes = _turns_after(row, len(messages))
    if answers is None:
        return notes
    lost = [
        (turn, text)
        for turn, (start, stop) in zip(turns, answers.spans, strict=True)
        for text in _texts(talk.messages[turn])
        if _squeezed(text) not in _squeezed(answers.text[start:stop])
    ]
    if lost:
        turn, text = lost[0]
        # The minted template writes contents whole, and no other key.
        in_key = any(text == str(talk.messages[turn].get(key)).strip() for key in REASONING_KEYS)
        way = "put it into `content`" if in_key else "set `model.chat: minted`"
        notes.append(
            f"the chat template does not write {_quoted(text)} of the answer in turn {turn + 1}, so it is not trained: "
            f"change the template in the model's folder to keep it, or {way}"
        )
    elif left_out := _left_out(tokenizer, talk, answers):
        notes.append(
            f"the generation prompt ends in {left_out!r}, which the template does not write before this answer: it is "
            "trained without; see `model.chat_template_kwargs`"
        )
    return notes


def _turns_after(row: Row, used: int) -> list[str]:
    rest: Sequence[Mapping[str, Any]] = (row.get("messages") or ())[used:]
    if not rest:
        return []
    return [f"turn {used + 1} (role '{rest[0]['role']}') comes after the last answer and is not used"]


def _texts(message: Mapping[str, Any]) -> list[str]:
    """The parts of an answer that should be trained: its reasoning, and its text around think tags."""
    content = message_text({key: value for key, value in message.items() if key != "tool_calls"})
    given = [message[key] for key in REASONING_KEYS if isinstance(message.get(key), str)]
    return [text for part in (*given, *THINK_TAG.split(content)) if (text := part.strip())]


def _left_out(tokenizer: Any, talk: Conversation, answers: AssistantSpans) -> str:
    """The end of the generation prompt that the text does not have before its last answer."""
    last = len(talk.messages) - 1
    messages = as_parts(talk.messages) if needs_parts(tokenizer) else talk.messages
    (history,) = render(tokenizer, [(messages[:last], False)], talk.tools)
    before = talk.before(last)
    if not before.startswith(history):
        return ""
    added, written = before[len(history) :], answers.text[: answers.spans[-1][0]]
    kept = next(n for n in range(len(added), -1, -1) if written.endswith(added[:n]))
    return added[kept:]


def _squeezed(text: str) -> str:
    """Without white space, which templates trim and add."""
    return "".join(text.split())


def _quoted(text: str) -> str:
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}…")
