"""Remove secrets from text before it is written or shown.

Secrets are the values of environment variables named like API keys, and in URLs the user, the password and query
parameters such as `key=`. They are found as they are, JSON-escaped and percent-encoded any number of times. Imports
only the standard library: every error passes through here.
"""

import os
import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import lru_cache

MARK = "[key]"
# Shorter values may occur in any text and are not treated as secrets.
SHORTEST_SECRET = 8
# Of a secret without its backslashes.
SHORTEST_PLAIN = 4

_ESCAPE = re.compile(
    rb"(?i:(?:\\|%(?:25)*+5c)(?:\\|u005c|%(?:25)*+5c)*+(?:u([0-9a-f]{4}))?+|%(?:25)*+([0-9a-f]{2})|%(?:25)++)"
)
"""Backslashes, however often escaped themselves, with or without an escape after them; `%73`, `%2573`; `%25`."""
_NAMES = re.compile(r"(API_?KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)(_|$)|_KEY$", re.IGNORECASE)
_USER = re.compile(r"(?<=://)[^\s/@'\"<>]++@")
_QUERY = re.compile(
    r"([?&#;](?:api[-_]?key|key|token|access[-_]?token|auth|secret|sig|signature|password)=)([^&#\s'\"<>]+)",
    re.IGNORECASE,
)


def redacted(text: str, *more: str) -> str:
    """The text with secrets replaced, those of the environment and those given as `more`."""
    known = (*more, *secrets())
    for secret in known:
        text = text.replace(secret, MARK)
    if known and ("\\" in text or "%" in text):
        text = _without_escaped(text, known)
    if "://" in text:
        text = _USER.sub(f"{MARK}@", text)
        text = _QUERY.sub(rf"\1{MARK}", text)
    return text


def _without_escaped(text: str, known: Sequence[str]) -> str:
    """Secrets are looked for in the text without escapes and backslashes, in time linear in the text."""
    data = text.encode("utf-8", "surrogatepass")
    plain, begins, places = _unescaped(data)
    spans: list[tuple[int, int]] = []
    for secret, wanted in [(each, form) for each in known for form in _plain_secrets(each)]:
        at = plain.find(wanted)
        while at >= 0:
            end = at + len(wanted)
            spans.append((_place(at, begins, places), _place(end, begins, places, after_escapes=secret.endswith("\\"))))
            at = plain.find(wanted, end)
    if not spans:
        return text
    parts, done = [], 0
    for start, end in sorted(spans):
        if start >= done:
            parts += [data[done:start], MARK.encode()]
        done = max(done, end)
    hidden = b"".join([*parts, data[done:]])
    try:
        return hidden.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:  # a secret such as `%80…` may begin within a character
        return hidden.decode("utf-8", "replace")


def _unescaped(data: bytes) -> tuple[bytes, list[int], list[int]]:
    """The bytes without escapes; and where each piece of them begins, there and in `data`."""
    pieces: list[bytes] = []
    begins, places, length, done = [0], [0], 0, 0
    for escape in _ESCAPE.finditer(data):
        code, byte = escape.groups()
        if code is not None:
            piece = chr(int(code, 16)).encode("utf-8", "surrogatepass")
        elif byte is not None:
            piece = bytes.fromhex(byte.decode())
        else:
            piece = b"%" if escape[0].endswith(b"25") else b""
        pieces += [data[done : escape.start()], piece]
        length += escape.start() - done
        begins.append(length)
        places.append(escape.start())
        length, done = length + len(piece), escape.end()
        begins.append(length)
        places.append(done)
    pieces.append(data[done:])
    return b"".join(pieces), begins, places


def _place(at: int, begins: list[int], places: list[int], after_escapes: bool = False) -> int:
    """The place in the text of a place in the text without escapes: before the backslashes there, or after them."""
    index = bisect_right(begins, at) - 1 if after_escapes else bisect_left(begins, at)
    if not after_escapes and (index == len(begins) or begins[index] > at):
        index -= 1
    return places[index] + at - begins[index]


@lru_cache(maxsize=64)
def _plain_secrets(secret: str) -> list[bytes]:
    """The secret without backslashes, and without what looks like an escape in it."""
    data = secret.encode("utf-8", "surrogatepass")
    return [form for form in {_unescaped(data)[0], data.replace(b"\\", b"")} if len(form) >= SHORTEST_PLAIN]


def secrets() -> list[str]:
    """Secrets in the environment: values of names such as OPENAI_API_KEY, and credentials within URLs. Longest first,
    because one may contain another."""
    values: set[str] = set()
    for name, value in os.environ.items():
        if _NAMES.search(name):
            values.add(value.strip())
        elif "://" in value:
            values |= {secret for user in _USER.findall(value) for secret in user[:-1].split(":")[1:]}
            values |= {secret for _, secret in _QUERY.findall(value)}
    return sorted((secret for secret in values if len(secret) >= SHORTEST_SECRET), key=len, reverse=True)
