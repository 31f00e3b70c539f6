"""Secrets stay out of what is written and shown: one function, used at the edges.

The keys of this process's environment are known, and are taken out wherever they stand. Of an address, so are the user
and the password, and what a query says of a key. Light on purpose: every error goes through here.
"""

import os
import re

MARK = "[key]"
# Shorter texts may stand anywhere; they are no secrets.
SHORTEST_SECRET = 8

_NAMES = re.compile(r"(API_?KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)(_|$)|_KEY$", re.IGNORECASE)
_USER = re.compile(r"(?<=://)[^\s/@'\"<>]+@")
_QUERY = re.compile(
    r"([?&#;](?:api[-_]?key|key|token|access[-_]?token|auth|secret|sig|signature|password)=)([^&#\s'\"<>]+)",
    re.IGNORECASE,
)


def redacted(text: str, *more: str) -> str:
    """The text without secrets, those that are given too; most texts come back as they are."""
    for secret in (*more, *secrets()):
        text = text.replace(secret, MARK)
    if "://" in text:
        text = _USER.sub(f"{MARK}@", text)
        text = _QUERY.sub(rf"\1{MARK}", text)
    return text


def secrets() -> list[str]:
    """What the environment holds under a name such as OPENAI_API_KEY, and within the address of an endpoint; the
    longest first, for one may be a part of another."""
    found: set[str] = set()
    for name, value in os.environ.items():
        if _NAMES.search(name):
            found.add(value.strip())
        elif "://" in value:
            found |= {secret for user in _USER.findall(value) for secret in user[:-1].split(":")[1:]}
            found |= {secret for _, secret in _QUERY.findall(value)}
    return sorted((secret for secret in found if len(secret) >= SHORTEST_SECRET), key=len, reverse=True)
