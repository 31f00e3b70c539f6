"""A server that is asked in JSON over HTTP, by many threads at once: what was lost on the way is asked for again."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from vigneron.errors import visible
from vigneron.sources.client import backoff

TRIES = 5
CONNECT_S = 10.0
SAID = 300


class Trouble(Exception):
    """No answer, and why. `again`: asking once more may mend it."""

    def __init__(self, why: str, *, again: bool, status: int | None = None) -> None:
        super().__init__(why)
        self.again, self.status = again, status


@dataclass(frozen=True)
class JsonServer:
    """`url` is the server's root. Every request has a connection of its own: none is found dead after an idle hour."""

    url: str
    timeout_s: float
    key: str = ""

    def ask(self, path: str, body: Mapping[str, Any] | None = None, *, tries: int = TRIES) -> Any:
        """The answer as JSON, None where it is empty. A body is posted. Asked again until it is there or `tries` are
        used up; then a `Trouble`."""
        for attempt in range(1, tries + 1):
            try:
                return self._once(path, body)
            except Trouble as trouble:
                if not trouble.again or attempt == tries:
                    raise
                time.sleep(backoff(attempt))
        raise AssertionError("not reached")

    def _once(self, path: str, body: Mapping[str, Any] | None) -> Any:
        parts = urlsplit(self.url)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=min(CONNECT_S, self.timeout_s))
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self.key}"} if self.key else {})
        try:
            connection.connect()
            connection.sock.settimeout(self.timeout_s)
            sent = None if body is None else json.dumps(body)
            connection.request("GET" if body is None else "POST", parts.path + path, sent, headers)
            response = connection.getresponse()
            text = response.read().decode("utf-8", errors="replace")
        except TimeoutError:
            reached = connection.sock is not None
            why = f"did not answer within {self.timeout_s:g} s" if reached else "cannot be reached in time"
            raise Trouble(why, again=not reached) from None
        except (OSError, HTTPException) as error:
            raise Trouble(f"lost the connection ({_cause(error)})", again=True) from None
        finally:
            connection.close()
        return _read(response.status, text)


def _read(status: int, text: str) -> Any:
    if not 200 <= status < 300:
        raise Trouble(f"answered {status}{_said(text)}", again=status >= 500 or status in (408, 429), status=status)
    if not text.strip():
        return None
    try:
        return json.loads(text)
    except ValueError:
        raise Trouble("answered with something else than JSON", again=False) from None


def _said(text: str) -> str:
    """What the server says of an error, on one line."""
    try:
        found = json.loads(text)
        error = found.get("error") or found.get("detail") or found.get("message")
        text = str(error.get("message") if isinstance(error, dict) else error)
    except (ValueError, AttributeError):
        pass
    line = visible(" ".join(text.split()))
    return f" ('{line[:SAID]}')" if line else ""


def _cause(error: BaseException) -> str:
    return getattr(error, "strerror", None) or type(error).__name__
