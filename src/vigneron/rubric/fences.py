"""Fences: text from a model or a dataset is put between two tags that it cannot forge, against prompt injection.

A fence's tag is a hash of the text that does not occur in it, so no text can close its own fence. The same text always
has the same fence, so that replies can be cached.
"""

import hashlib
import json
import re
import unicodedata
from typing import Any

from vigneron.policy.message_forms import message_text

MAX_FENCED = 16_000
"""Characters of a fenced text; a longer one is truncated in the middle."""
MIN_TAG = 8

JOINERS = "\u200c\u200d"
"""Not printable to Python, but part of words and emoji."""
ROLE_TOKEN = re.compile(r"<(?=[|｜]\w+[|｜]>|(?:start|end)_of_turn>)")
"""Special tokens of chat templates. Some endpoints parse them anywhere in a message."""


def fenced(name: str, text: str) -> str:
    shown = _cut(visible(text.replace("\r\n", "\n")))
    tag = _absent_tag(shown)
    return f"<{name}-{tag}>\n{shown}\n</{name}-{tag}>"


def visible(text: str) -> str:
    """Control and invisible characters as escapes, except newline and tab; role tokens with a backslash."""
    if not text.replace("\n", "").replace("\t", "").isprintable():
        text = "".join(c if c.isprintable() or _is_allowed(c) else repr(c)[1:-1] for c in text)
    return ROLE_TOKEN.sub(r"<\\", text)


def one_line(text: str) -> str:
    """On one line, for messages."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def as_text(value: Any) -> str:
    """A dataset's value as text: strings as they are, messages by their contents, the rest as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(isinstance(m, dict) and "content" in m for m in value):
        return "\n".join(message_text(message) for message in value)
    return json.dumps(value, ensure_ascii=False, default=str)


def _is_allowed(character: str) -> bool:
    """`isprintable` is false for all Unicode spaces but U+0020; the category Zs excludes line separators."""
    return character in f"\n\t{JOINERS}" or unicodedata.category(character) == "Zs"


def _cut(text: str) -> str:
    if len(text) <= MAX_FENCED:
        return text
    mark = f"\n[… {len(text)} characters, cut here …]\n"
    half = (MAX_FENCED - len(mark)) // 2
    return text[:half] + mark + text[-half:]


def _absent_tag(text: str) -> str:
    """The shortest prefix of the text's hash that does not occur in it, ignoring case."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    lower = text.lower()
    size = MIN_TAG
    while digest[:size] in lower:
        size += 1
        if size > len(digest):
            digest += hashlib.sha256(digest.encode()).hexdigest()
    return digest[:size]
