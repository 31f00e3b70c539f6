"""A thread-safe client of a JSON API over HTTP that retries lost requests."""

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
LONGEST_MESSAGE = 300


class HttpError(Exception):
    """A request failed. `retry`: another attempt may succeed."""

    def __init__(self, why: str, *, retry: bool, status: int | None = None) -> None:
        super().__init__(why)
        self.retry, self.status = retry, status


@dataclass(frozen=True)
class JsonServer:
    """`url` is the server's root. Every request opens its own connection, so that none can time out while idle."""

    url: str
    timeout_s: float
    key: str = ""

    def request(self, path: str, body: Mapping[str, Any] | None = None, *, tries: int = TRIES) -> Any:
        """POST the body, or GET without one. Returns the parsed JSON, None if the response is empty. Raises `HttpError`
        after `tries` attempts."""
        for attempt in range(1, tries + 1):
            try:
                return self._once(path, body)
            except HttpError as error:
                if not error.retry or attempt == tries:
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
            raise HttpError(why, retry=not reached) from None
        except (OSError, HTTPException) as error:
            raise HttpError(f"lost the connection ({_cause(error)})", retry=True) from None
        finally:
            connection.close()
        return _read(response.status, text)


def _read(status: int, text: str) -> Any:
    if not 200 <= status < 300:
        raise HttpError(
            f"answered {status}{_message(text)}", retry=status >= 500 or status in (408, 429), status=status
        )
    if not text.strip():
        return None
    try:
        return json.loads(text)
    except ValueError:
        raise HttpError("answered with something that is not JSON", retry=False) from None


def _message(text: str) -> str:
    """The server's error message on one line."""
    try:
        body = json.loads(text)
        error = body.get("error") or body.get("detail") or body.get("message")
        text = str(error.get("message") if isinstance(error, dict) else error)
    except (ValueError, AttributeError):
        pass
    line = visible(" ".join(text.split()))
    return f" ('{line[:LONGEST_MESSAGE]}')" if line else ""


def _cause(error: BaseException) -> str:
    return getattr(error, "strerror", None) or type(error).__name__
