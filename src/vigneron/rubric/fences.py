"""Fences: what a model wrote, or a dataset says, stands between two lines that it cannot forge.

A fence's tag comes from a hash of the text, and does not occur in it: no text can close its own fence. The same text
always has the same fence, so that answers can be kept.
"""

import hashlib
import json
import re
import unicodedata
from typing import Any

LONGEST_FENCED = 16_000
"""Characters of a fenced text; a longer one is cut in the middle."""
SHORTEST_TAG = 8

JOINERS = "\u200c\u200d"
"""Not printable, but part of words and of emoji."""
ROLE_MARK = re.compile(r"<(?=[|｜]\w+[|｜]>|(?:start|end)_of_turn>)")
"""What chat templates write before a role. Some endpoints read it as such wherever it stands."""


def fenced(name: str, text: str) -> str:
    shown = _cut(visible(text.replace("\r\n", "\n")))
    tag = _absent_tag(shown)
    return f"<{name}-{tag}>\n{shown}\n</{name}-{tag}>"


def visible(text: str) -> str:
    """Control and other invisible characters as escapes, but for newline and tab; roles' marks with a backslash."""
    if not text.replace("\n", "").replace("\t", "").isprintable():
        text = "".join(c if c.isprintable() or _is_fine(c) else repr(c)[1:-1] for c in text)
    return ROLE_MARK.sub(r"<\\", text)


def one_line(text: str) -> str:
    """For messages that name what a file holds."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def as_text(value: Any) -> str:
    """A dataset's value as a person reads it: a text as it is, messages by what they say, the rest as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(isinstance(m, dict) and "content" in m for m in value):
        return "\n".join(str(message["content"]) for message in value)
    return json.dumps(value, ensure_ascii=False, default=str)


def _is_fine(character: str) -> bool:
    """To Python no space but the plain one is printable; those that end a line are no spaces to Unicode."""
    return character in f"\n\t{JOINERS}" or unicodedata.category(character) == "Zs"


def _cut(text: str) -> str:
    if len(text) <= LONGEST_FENCED:
        return text
    mark = f"\n[… {len(text)} characters, cut here …]\n"
    half = (LONGEST_FENCED - len(mark)) // 2
    return text[:half] + mark + text[-half:]


def _absent_tag(text: str) -> str:
    """The shortest start of the text's hash that does not occur in it, in any case of letters."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    lower = text.lower()
    size = SHORTEST_TAG
    while digest[:size] in lower:
        size += 1
        if size > len(digest):
            digest += hashlib.sha256(digest.encode()).hexdigest()
    return digest[:size]
