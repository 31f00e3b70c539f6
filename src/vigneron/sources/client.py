"""The HTTP client for any OpenAI-compatible endpoint.

A request that still fails after its retries returns a `Failure`, never an exception and never an empty answer. What a
retry cannot fix (a wrong key, an unknown model) raises a `UserError` immediately. The API key comes from the
environment and is only written to the request's header.
"""

import json
import math
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from ipaddress import ip_address
from threading import Event
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from vigneron.config import plain_url
from vigneron.errors import UserError
from vigneron.values import is_number

if TYPE_CHECKING:
    from vigneron.http_client import Response

OPENAI_URL = "https://api.openai.com/v1"
# Sent as the key to a loopback server without one.
NO_KEY = "no-key-needed"
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 8.0
LONGEST_DATE = 100
LONGEST_INT = 300
# Bytes of a chat reply: reading it, after its deadline, takes some microseconds a byte.
LONGEST_CHAT = 4_000_000

MEMORY_OF = {b",": 64, b":": 100, b"{": 240, b"[": 64}
"""Bytes of memory that a value takes when it is parsed, at most, by the mark before it. Those in texts count too."""
LARGEST_PARSED = 256_000_000
"""Four million numbers: 1,000 embeddings of 4,000. A body of 16 MB may hold objects that take thirty times as much."""

# A larger token count is not one.
LARGEST_COUNT = 2**53

# Separate from Python's global generator: retries must not change other random draws.
_JITTER = random.Random()

Message = dict[str, str]
Parsed = TypeVar("Parsed")


@dataclass(frozen=True)
class Failure:
    """A request without an answer. `refused`: the endpoint rejected this request, so a retry is no use."""

    why: str
    refused: bool = False


@dataclass(frozen=True)
class ChatReply:
    """A chat model's reply. `truncated`: it reached the token limit."""

    text: str
    truncated: bool = False
    tokens_in: int = 0
    tokens_out: int = 0
    refusal: str = ""
    """The endpoint's `refusal` field."""
    token_logprobs: tuple[tuple[bytes, float], ...] = ()
    """Tokens with their log-probs, if requested and returned."""
    top_logprobs: tuple[tuple[tuple[bytes, float], ...], ...] = ()
    """The likeliest tokens at each place, if requested and returned."""


def base_url(url: str | None, where: str) -> str:
    """The config's URL, else OPENAI_BASE_URL, else OpenAI's. A URL with credentials is refused."""
    if url is not None:
        return url.rstrip("/")
    try:
        return plain_url(os.environ.get("OPENAI_BASE_URL") or OPENAI_URL).rstrip("/")
    except ValueError as error:
        raise UserError(f"{where}: OPENAI_BASE_URL {error}") from None


class Client:
    """`where` is the config key that errors name. `total_timeout_s` bounds a request with all its retries."""

    def __init__(
        self,
        url: str | None,
        where: str,
        *,
        timeout_s: float = 60.0,
        retries: int = 5,
        total_timeout_s: float = 300.0,
    ) -> None:
        from vigneron.http_client import HttpClient

        self.url = base_url(url, where)
        self._where, self._timeout_s, self._retries, self._total_timeout_s = where, timeout_s, retries, total_timeout_s
        self._stopped = Event()
        loopback = is_loopback(self.url)
        key = os.environ.get("OPENAI_API_KEY", "").strip()
        if not key and not loopback:
            raise UserError(
                f"{where}: OPENAI_API_KEY is not set, and '{self.url}' is not on this machine "
                "(any text will do where the endpoint needs no key)"
            )
        if not key.isascii() or not key.isprintable():
            raise UserError(f"{where}: OPENAI_API_KEY contains a character that is not printable ASCII")
        self._has_key = bool(key)
        try:
            self._http = HttpClient(self.url, key or NO_KEY, proxies=not loopback)
        except UserError as error:
            raise UserError(f"{where}: {error}") from None

    def __repr__(self) -> str:
        return f"Client({self.url})"

    def stop(self) -> None:
        """Stop retrying. Requests in flight finish in daemon threads: see `threads`."""
        self._stopped.set()

    def chat(
        self,
        model: str,
        messages: Sequence[Message],
        *,
        max_tokens: int,
        temperature: float = 0.0,
        response_format: Mapping[str, Any] | None = None,
        logprobs: bool = False,
        top_logprobs: int | None = None,
        fail_fast: bool = False,
    ) -> ChatReply | Failure:
        """A chat completion, greedy at temperature 0. Optional fields are only sent if set: some endpoints refuse
        unknown ones."""
        body: dict[str, Any] = {
            "model": model,
            "messages": list(messages),
            "max_tokens": max_tokens,
            "temperature": temperature,
        }
        if response_format is not None:
            body["response_format"] = dict(response_format)
        if logprobs or top_logprobs is not None:
            body["logprobs"] = True
        if top_logprobs is not None:
            body["top_logprobs"] = top_logprobs
        return self._request("/chat/completions", body, self._reply, fail_fast)

    def embeddings(
        self, model: str, texts: Sequence[str], *, fail_fast: bool = False
    ) -> list[list[float] | None] | Failure:
        """A vector for each text; None where it is not a list of numbers."""
        body = {"model": model, "input": list(texts), "encoding_format": "float"}
        return self._request("/embeddings", body, lambda data: parse_vectors(data, len(texts)), fail_fast)

    def _reply(self, data: Any) -> ChatReply:
        reply = parse_reply(data)
        return replace(reply, text=self._http.redacted(reply.text), refusal=self._http.redacted(reply.refusal))

    def _request(
        self, path: str, body: Mapping[str, Any], parse: Callable[[Any], Parsed], fail_fast: bool
    ) -> Parsed | Failure:
        """`fail_fast`: only one retry if the endpoint cannot be reached."""
        from vigneron.http_client import LONGEST_RESPONSE, BrokenResponse, Unreachable

        deadline = time.monotonic() + self._total_timeout_s
        attempt = 0
        while True:
            requested_wait = None
            reachable = True
            try:
                timeout_s = min(self._timeout_s, max(0.0, deadline - time.monotonic()))
                longest = LONGEST_CHAT if path.endswith("completions") else LONGEST_RESPONSE
                response = self._http.request(path, body, timeout_s=timeout_s, longest=longest)
            except TimeoutError:
                why = f"did not answer within {self._timeout_s:g} s"
            except Unreachable as error:
                reachable = False
                why = f"cannot be reached ({error})"
            except BrokenResponse as error:
                why = f"broke off its response ({error})"
            else:
                if 200 <= response.status < 300:
                    try:
                        return parse(parse_response(response.body))
                    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError):
                        why = "returned a malformed response"
                else:
                    why = f"answered {response.status}{self._error_text(response)}"
                    self._raise_if_permanent(response.status, why, body["model"])
                    if response.status < 500 and response.status not in (408, 409, 429):
                        return Failure(why, refused=True)
                    requested_wait = retry_after(response.headers)
            attempt += 1
            wait = backoff(attempt) if requested_wait is None else requested_wait + _JITTER.uniform(0, FIRST_WAIT_S)
            if requested_wait is not None and time.monotonic() + wait > deadline:
                return Failure(f"{why} with Retry-After {requested_wait:g} s")
            exhausted = attempt > (min(self._retries, 1) if fail_fast and not reachable else self._retries)
            if exhausted or time.monotonic() + wait > deadline or self._stopped.wait(wait):
                return Failure(f"{why} ({attempt} times)" if attempt > 1 else why)

    def _raise_if_permanent(self, status: int, why: str, model: str) -> None:
        causes = {
            401: "the key in OPENAI_API_KEY is not accepted" if self._has_key else "it needs a key: set OPENAI_API_KEY",
            403: f"the key in OPENAI_API_KEY may not use '{model}'",
            404: f"it has no model '{model}', or the address is wrong (most end in /v1)",
        }
        if status in causes:
            detail = "" if status in (401, 403) else why.removeprefix(f"answered {status}")
            raise UserError(f"{self._where}: '{self.url}' answered {status}: {causes[status]}{detail}") from None

    def _error_text(self, response: "Response") -> str:
        """The endpoint's error message, or where it redirects to, on one line."""
        text = error_message(response.body) or ""
        if 300 <= response.status < 400 and "location" in response.headers:
            text = f"it redirects to {response.headers['location']}: set that address"
        line = "".join(c if c.isprintable() else " " for c in self._http.redacted(text))
        line = " ".join(line.split())
        return f" ('{line[:200]}{'…' if len(line) > 200 else ''}')" if line else ""


def parse_response(body: bytes, largest: int | None = None) -> Any:
    """JSON from an endpoint that takes at most `largest` bytes of memory, or `LARGEST_PARSED`. An integer too large for
    a float is None: missing. Any other fault is a ValueError."""
    if sum(cost * body.count(mark) for mark, cost in MEMORY_OF.items()) > (largest or LARGEST_PARSED):
        raise ValueError("too many values")
    try:
        return json.loads(body.decode("utf-8"), parse_int=_int)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _int(text: str) -> int | None:
    return int(text) if len(text) <= LONGEST_INT else None


def error_message(body: bytes) -> str | None:
    """The message in the JSON of an error, as OpenAI and vLLM write it; None if there is none."""
    try:
        given = parse_response(body)
    except ValueError:
        return None
    for name in ("error", "detail", "message"):
        inner = given.get(name) if isinstance(given, dict) else None
        if isinstance(inner, dict):
            inner = inner.get("message") or inner.get("detail")
        if isinstance(inner, str) and inner.strip():
            return inner
    return None


def is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def backoff(attempt: int) -> float:
    """Seconds to wait: exponential from 0.5, with up to 25 % jitter so that parallel requests spread out."""
    return min(FIRST_WAIT_S * 2.0 ** (attempt - 1), LONGEST_WAIT_S) * _JITTER.uniform(0.75, 1.0)


def retry_after(headers: Any) -> float | None:
    """Seconds of the `Retry-After` header, a number or a date."""
    text = headers.get("retry-after")
    if text is None or len(text) > LONGEST_DATE:
        return None
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(text).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return None
    return seconds if 0 <= seconds < float("inf") else None


def parse_reply(data: Any) -> ChatReply:
    """The first choice. A model that refuses may return no text: that is an empty reply, refused by later parsing."""
    choice = data["choices"][0]
    text = choice["message"]["content"]
    if text is not None and not isinstance(text, str):
        raise ValueError("the content is not a string")
    used = data.get("usage")
    tokens_in, tokens_out = (
        _count(used.get(name) if isinstance(used, dict) else None) for name in ("prompt_tokens", "completion_tokens")
    )
    refusal = choice["message"].get("refusal")
    return ChatReply(
        text or "",
        choice.get("finish_reason") == "length",
        tokens_in,
        tokens_out,
        refusal if isinstance(refusal, str) else "",
        _if_well_formed(lambda: _tokens((choice.get("logprobs") or {}).get("content") or ())),
        _if_well_formed(lambda: _top_tokens((choice.get("logprobs") or {}).get("content") or ())),
    )


def _count(value: Any) -> int:
    """A token count; 0 if the endpoint reports none, or a number that cannot be one."""
    known = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST_COUNT
    return value if known else 0


def _tokens(listed: Any) -> tuple[tuple[bytes, float], ...]:
    """Tokens as bytes, since one may hold part of a character."""
    return tuple((_token(each), _logprob(each["logprob"])) for each in listed)


def _token(each: Any) -> bytes:
    if each.get("bytes") is None:
        return str(each["token"]).encode()
    if not isinstance(each["bytes"], list):  # of a number, `bytes` would make so many zeros
        raise ValueError("the bytes of a token are not a list")
    return bytes(each["bytes"])


def _logprob(value: Any) -> float:
    """−∞ is the log of probability 0; NaN and +∞ are not log-probs."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not float(value) < math.inf:
        raise ValueError("not a log-prob")
    return float(value)


def _top_tokens(listed: Any) -> tuple[tuple[tuple[bytes, float], ...], ...]:
    places = tuple(_tokens(each.get("top_logprobs") or ()) for each in listed)
    return places if all(places) else ()


def _if_well_formed(read: Callable[[], tuple[Parsed, ...]]) -> tuple[Parsed, ...]:
    """Empty if any token is malformed."""
    try:
        return read()
    except (AttributeError, LookupError, TypeError, ValueError, OverflowError):
        return ()


def parse_vectors(response: Any, count: int) -> list[list[float] | None]:
    """In the order of the texts, given by `index`."""
    rows = {row["index"]: row["embedding"] for row in response["data"]}
    if len(response["data"]) != count or set(rows) != set(range(count)):
        raise ValueError("not a vector for every text")
    return [_numbers(rows[i]) for i in range(count)]


def _numbers(row: Any) -> list[float] | None:
    if not isinstance(row, list) or not row:
        return None
    return [float(x) for x in row] if all(map(is_number, row)) else None
