"""Remove secrets from text before it is written or shown.

Secrets are the values of environment variables named like API keys, and in URLs the user, the password and query
parameters such as `key=`. They are found as they are, JSON-escaped any number of times, and percent-encoded. Imports
only the standard library: every error passes through here.
"""

import os
import re
from functools import lru_cache

MARK = "[key]"
# Shorter values may occur in any text and are not treated as secrets.
SHORTEST_SECRET = 8

# Any number of backslashes, which are not given back.
BACKSLASHES = r"\\*+"
_NAMES = re.compile(r"(API_?KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)(_|$)|_KEY$", re.IGNORECASE)
_USER = re.compile(r"(?<=://)[^\s/@'\"<>]++@")
_QUERY = re.compile(
    r"([?&#;](?:api[-_]?key|key|token|access[-_]?token|auth|secret|sig|signature|password)=)([^&#\s'\"<>]+)",
    re.IGNORECASE,
)


def redacted(text: str, *more: str) -> str:
    """The text with secrets replaced, those of the environment and those given as `more`."""
    escaped = "\\" in text or "%" in text
    for secret in (*more, *secrets()):
        text = text.replace(secret, MARK)
        if escaped:
            text = _escaped(secret).sub(MARK, text)
    if "://" in text:
        text = _USER.sub(f"{MARK}@", text)
        text = _QUERY.sub(rf"\1{MARK}", text)
    return text


@lru_cache(maxsize=64)
def _escaped(secret: str) -> re.Pattern[str]:
    r"""The secret with any of its characters escaped: `\u0073`, `\/`, `%73`, also where a backslash is itself escaped.

    A run of backslashes is read from its start only, and never given back, so that matching is linear.
    """
    parts = [
        rf"(?:{BACKSLASHES}(?i:u005c|%5c)|\\++)++"
        if part[0] == "\\"
        else f"{BACKSLASHES}(?:{re.escape(part)}|(?i:u{ord(part):04x}|{_percent(part)}))"
        for part in re.findall(r"\\+|[^\\]", secret)
    ]
    return re.compile(r"(?:(?<!\\)|(?!\\))" + "".join(parts))


def _percent(character: str) -> str:
    return "".join(f"%{byte:02x}" for byte in character.encode(errors="replace"))


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
