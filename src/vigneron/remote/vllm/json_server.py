"""A thread-safe client of a JSON API over HTTP that retries lost requests."""

import time
from collections.abc import Mapping
from typing import Any

from vigneron.errors import visible
from vigneron.http_client import BrokenResponse, HttpClient, Response, Unreachable
from vigneron.sources.client import backoff, error_message, parse_response

TRIES = 5
CONNECT_S = 10.0
# Bytes in memory: tokens with their log-probs take ten times the body's.
LARGEST_PARSED = 1_000_000_000
LONGEST_MESSAGE = 300


class HttpError(Exception):
    """A request failed. `retry`: another attempt may succeed."""

    def __init__(self, why: str, *, retry: bool, status: int | None = None) -> None:
        super().__init__(why)
        self.retry, self.status = retry, status


class JsonServer:
    """`url` is the server's root. Every request opens its own connection, so that none can time out while idle."""

    def __init__(self, url: str, timeout_s: float, key: str = "") -> None:
        self.url, self.timeout_s = url, timeout_s
        self._http = HttpClient(url, key, idle=0, proxies=False)

    def __repr__(self) -> str:
        return f"JsonServer({self.url})"

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
        connect_s = min(CONNECT_S, self.timeout_s)
        try:
            response = self._http.request(path, body, timeout_s=self.timeout_s, connect_s=connect_s)
        except TimeoutError:
            raise HttpError(f"did not answer within {self.timeout_s:g} s", retry=False) from None
        except Unreachable as error:
            raise HttpError(f"cannot be reached ({error})", retry=True) from None
        except BrokenResponse as error:
            raise HttpError(f"lost the connection ({error})", retry=True) from None
        return self._read(response)

    def _read(self, response: Response) -> Any:
        status = response.status
        if not 200 <= status < 300:
            raise HttpError(
                f"answered {status}{self._message(response.body)}",
                retry=status >= 500 or status in (408, 429),
                status=status,
            )
        if not response.body.strip():
            return None
        try:
            return parse_response(response.body, LARGEST_PARSED)
        except ValueError:
            raise HttpError("answered with something that is not JSON", retry=False) from None

    def _message(self, body: bytes) -> str:
        """The server's error message on one line."""
        text = error_message(body) or body[: 10 * LONGEST_MESSAGE].decode("utf-8", errors="replace")
        line = visible(" ".join(self._http.redacted(text).split()))
        return f" ('{line[:LONGEST_MESSAGE]}')" if line else ""
