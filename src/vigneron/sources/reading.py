"""Reading a parent's reply: strictly, so that no explanation and no half sentence becomes an answer."""

import json
import re
from typing import Any, Literal

Reads = Literal["json", "text"]

FENCE = re.compile(r"```(?:json)?[ \t]*\n(.*?)\n?[ \t]*```", re.DOTALL)


class Unreadable(ValueError):
    """What is wrong with a reply, in words that the parent is told."""


def read_answer(text: str, reads: Reads) -> str:
    """json: the whole reply is {"OUTPUT": …}, in one fence at most. text: the whole reply. Both one line."""
    answer = _of_json(text) if reads == "json" else _of_text(text)
    if not answer:
        raise Unreadable("it was empty")
    if len(answer.splitlines()) > 1:
        raise Unreadable("it had more than one line")
    try:
        answer.encode()
    except UnicodeEncodeError:
        raise Unreadable("it was not valid Unicode") from None
    return answer


def _of_text(text: str) -> str:
    """Without one pair of quotes, which an instruction's examples invite."""
    text = text.strip()
    if text.startswith("{") and text.endswith("}"):
        raise Unreadable("it was JSON")
    quoted = re.fullmatch(r'"([^"]*)"|“([^“”]*)”', text)
    return (quoted[1] or quoted[2] or "").strip() if quoted else text


def _of_json(text: str) -> str:
    text = text.strip()
    fenced = FENCE.fullmatch(text)
    try:
        found = json.loads(fenced[1] if fenced else text, object_pairs_hook=list)
    except (ValueError, RecursionError):
        raise Unreadable("it was not one JSON object and nothing else") from None
    if not isinstance(found, list) or not all(isinstance(pair, tuple) for pair in found):
        raise Unreadable("it was not one JSON object and nothing else")
    if [key for key, _ in found] != ["OUTPUT"]:
        raise Unreadable('its only key was not "OUTPUT"')
    output: Any = found[0][1]
    if not isinstance(output, str):
        raise Unreadable('"OUTPUT" was not a text')
    return output.strip()


def complaint(wrong: str, reads: Reads) -> str:
    """What a parent is told whose reply could not be read."""
    form = '{"OUTPUT": "<answer>"} and nothing else' if reads == "json" else "the answer alone, on one line"
    return f"That could not be read: {wrong}. Reply with {form}."
