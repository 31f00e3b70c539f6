"""Remove secrets from text before it is written or shown.

Secrets are the values of environment variables named like API keys, and in URLs the user, the password and query
parameters such as `key=`. Imports only the standard library: every error passes through here.
"""

import os
import re

MARK = "[key]"
# Shorter values may occur in any text and are not treated as secrets.
SHORTEST_SECRET = 8

_NAMES = re.compile(r"(API_?KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)(_|$)|_KEY$", re.IGNORECASE)
_USER = re.compile(r"(?<=://)[^\s/@'\"<>]+@")
_QUERY = re.compile(
    r"([?&#;](?:api[-_]?key|key|token|access[-_]?token|auth|secret|sig|signature|password)=)([^&#\s'\"<>]+)",
    re.IGNORECASE,
)


def redacted(text: str, *more: str) -> str:
    """The text with secrets replaced, those of the environment and those given as `more`."""
    for secret in (*more, *secrets()):
        text = text.replace(secret, MARK)
    if "://" in text:
        text = _USER.sub(f"{MARK}@", text)
        text = _QUERY.sub(rf"\1{MARK}", text)
    return text


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
