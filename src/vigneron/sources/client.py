"""The HTTP client for any OpenAI-compatible endpoint.

A request that still fails after its retries returns a `Failure`, never an exception and never an empty answer. What a
retry cannot fix (a wrong key, an unknown model) raises a `UserError` immediately. The API key comes from the
environment and is only written to the request's header.
"""

import json
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from ipaddress import ip_address
from threading import Event
from typing import Any, TypeVar
from urllib.parse import urlsplit

from vigneron.config import plain_url
from vigneron.errors import UserError
from vigneron.redaction import SHORTEST_SECRET, redacted

OPENAI_URL = "https://api.openai.com/v1"
# Sent as the key to a loopback server without one.
NO_KEY = "no-key-needed"
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 8.0
LONGEST_BODY = 200_000_000

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
        from openai import DefaultHttpxClient, OpenAI

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
        self._secrets = [key] if len(key) >= SHORTEST_SECRET else []
        self._openai = OpenAI(
            api_key=key or NO_KEY,
            base_url=self.url,
            timeout=timeout_s,
            max_retries=0,
            # No proxy for loopback addresses.
            http_client=DefaultHttpxClient(trust_env=not loopback),
        )

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
        create: Any = self._openai.chat.completions.with_streaming_response.create
        body: dict[str, Any] = {"messages": list(messages), "max_tokens": max_tokens, "temperature": temperature}
        if response_format is not None:
            body["response_format"] = dict(response_format)
        if logprobs or top_logprobs is not None:
            body["logprobs"] = True
        if top_logprobs is not None:
            body["top_logprobs"] = top_logprobs
        # `extra_body` skips the SDK's conversion of every field, which takes as long as the rest of a call.
        return self._request(lambda: create(model=model, messages=(), extra_body=body), parse_reply, model, fail_fast)

    def embeddings(
        self, model: str, texts: Sequence[str], *, fail_fast: bool = False
    ) -> list[list[float] | None] | Failure:
        """A vector for each text; None where it is not a list of numbers."""
        create: Any = self._openai.embeddings.with_streaming_response.create
        body = {"model": model, "input": list(texts), "encoding_format": "float"}
        return self._request(lambda: create(**body), lambda data: parse_vectors(data, len(texts)), model, fail_fast)

    def _request(
        self, request: Callable[[], Any], parse: Callable[[Any], Parsed], model: str, fail_fast: bool
    ) -> Parsed | Failure:
        """`fail_fast`: only one retry if the endpoint cannot be reached."""
        from openai import APIConnectionError, APIStatusError, APITimeoutError

        deadline = time.monotonic() + self._total_timeout_s
        attempt = 0
        while True:
            requested_wait = None
            reachable = True
            try:
                return parse(json.loads(self._body(request, deadline)))
            except APIStatusError as error:
                why = f"answered {error.status_code}{self._error_text(error)}"
                self._raise_if_permanent(error.status_code, why, model)
                if error.status_code < 500 and error.status_code not in (408, 409, 429):
                    return Failure(why, refused=True)
                requested_wait = retry_after(error.response.headers)
            except (APITimeoutError, TimeoutError):
                why = f"did not answer within {self._timeout_s:g} s"
            except APIConnectionError as error:
                reachable = False
                why = f"cannot be reached ({_cause(error)})"
            except (ValueError, KeyError, IndexError, TypeError, RecursionError):
                why = "returned a malformed response"
            except Exception as error:  # a connection can break in any way
                why = f"broke off its response ({type(error).__name__})"
            attempt += 1
            wait = backoff(attempt) if requested_wait is None else requested_wait + _JITTER.uniform(0, FIRST_WAIT_S)
            if requested_wait is not None and time.monotonic() + wait > deadline:
                return Failure(f"{why} with Retry-After {requested_wait:g} s")
            exhausted = attempt > (min(self._retries, 1) if fail_fast and not reachable else self._retries)
            if exhausted or time.monotonic() + wait > deadline or self._stopped.wait(wait):
                return Failure(f"{why} ({attempt} times)" if attempt > 1 else why)

    def _body(self, request: Callable[[], Any], deadline: float) -> str:
        """The whole body within the time limit, however slowly it arrives, with the API key redacted."""
        deadline = min(deadline, time.monotonic() + self._timeout_s)
        body = bytearray()
        with request() as response:
            for chunk in response.iter_bytes():
                body += chunk
                if time.monotonic() > deadline:
                    raise TimeoutError
                if len(body) > LONGEST_BODY:
                    raise ValueError("response body too long")
        return redacted(body.decode("utf-8"), *self._secrets)

    def _raise_if_permanent(self, status: int, why: str, model: str) -> None:
        causes = {
            401: "the key in OPENAI_API_KEY is not accepted" if self._has_key else "it needs a key: set OPENAI_API_KEY",
            403: f"the key in OPENAI_API_KEY may not use '{model}'",
            404: f"it has no model '{model}', or the address is wrong (most end in /v1)",
        }
        if status in causes:
            detail = "" if status in (401, 403) else why.removeprefix(f"answered {status}")
            raise UserError(f"{self._where}: '{self.url}' answered {status}: {causes[status]}{detail}") from None

    def _error_text(self, error: Any) -> str:
        """The endpoint's error message, on one line."""
        body = error.body
        text = body.get("message") or body.get("detail") if isinstance(body, dict) else body
        if not isinstance(text, str) or not text.strip():
            return ""
        line = "".join(c if c.isprintable() else " " for c in redacted(text, *self._secrets))
        line = " ".join(line.split())
        return f" ('{line[:200]}{'…' if len(line) > 200 else ''}')"


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
    if text is None:
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
    used = data.get("usage") or {}
    counts = [used.get(name) for name in ("prompt_tokens", "completion_tokens")]
    tokens_in, tokens_out = (count if isinstance(count, int) else 0 for count in counts)
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


def _tokens(listed: Any) -> tuple[tuple[bytes, float], ...]:
    """Tokens as bytes, since one may hold part of a character."""
    return tuple(
        (each["token"].encode() if each.get("bytes") is None else _bytes(each["bytes"]), float(each["logprob"]))
        for each in listed
    )


def _bytes(listed: Any) -> bytes:
    if not isinstance(listed, list):  # of a number, Python would make as many zeros
        raise TypeError("not a list of bytes")
    return bytes(listed)


def _top_tokens(listed: Any) -> tuple[tuple[tuple[bytes, float], ...], ...]:
    places = tuple(_tokens(each.get("top_logprobs") or ()) for each in listed)
    return places if all(places) else ()


def _if_well_formed(read: Callable[[], tuple[Parsed, ...]]) -> tuple[Parsed, ...]:
    """Empty if any token is malformed."""
    try:
        return read()
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
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
    if not all(isinstance(x, int | float) and not isinstance(x, bool) for x in row):
        return None
    return [float(x) for x in row]


def _cause(error: BaseException) -> str:
    """The innermost cause, such as `Connection refused`."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return getattr(error, "strerror", None) or type(error).__name__
