"""One client for everything that is asked over HTTP: any OpenAI-compatible endpoint.

What stays broken after the retries is a `Failure`, never an exception and never an empty answer. What no retry mends (a
wrong key, an unknown model) is a `UserError` at once. The key comes from the environment and goes into the request's
header, and nowhere else.
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
# What a loopback server, which asks for no key, is sent as one.
NO_KEY = "no-key-needed"
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 8.0
LONGEST_BODY = 200_000_000

# Of its own: a hiccup of the network must not change what somebody else draws.
_JITTER = random.Random()

Message = dict[str, str]
Read = TypeVar("Read")


@dataclass(frozen=True)
class Failure:
    """No answer, and why. `refused`: the endpoint would not take this very request, and asking again is no use."""

    why: str
    refused: bool = False


@dataclass(frozen=True)
class Reply:
    """What a chat model answered. `cut`: the length limit ended it."""

    text: str
    cut: bool = False
    tokens_in: int = 0
    tokens_out: int = 0
    refusal: str = ""
    """What an endpoint says apart from the text when its model will not answer."""
    pieces: tuple[tuple[bytes, float], ...] = ()
    """The reply's tokens with their log-probs, where they were asked for and given."""


def base_url(url: str | None, where: str) -> str:
    """The config's, else OPENAI_BASE_URL, else OpenAI's own; refused where it holds a secret."""
    if url is not None:
        return url.rstrip("/")
    try:
        return plain_url(os.environ.get("OPENAI_BASE_URL") or OPENAI_URL).rstrip("/")
    except ValueError as error:
        raise UserError(f"{where}: OPENAI_BASE_URL {error}") from None


class Client:
    """`where` is the config's key that errors name. `patience_s` bounds a request with all its retries."""

    def __init__(
        self,
        url: str | None,
        where: str,
        *,
        timeout_s: float = 60.0,
        retries: int = 5,
        patience_s: float = 300.0,
    ) -> None:
        from openai import DefaultHttpxClient, OpenAI

        self.url = base_url(url, where)
        self._where, self._timeout_s, self._retries, self._patience_s = where, timeout_s, retries, patience_s
        self._stopped = Event()
        loopback = is_loopback(self.url)
        key = os.environ.get("OPENAI_API_KEY", "").strip()
        if not key and not loopback:
            raise UserError(
                f"{where}: OPENAI_API_KEY is not set, and '{self.url}' is not on this machine "
                "(any text will do where the endpoint needs no key)"
            )
        if not key.isascii() or not key.isprintable():
            raise UserError(f"{where}: OPENAI_API_KEY holds a character that no key has")
        self._has_key = bool(key)
        self._secrets = [key] if len(key) >= SHORTEST_SECRET else []
        self._openai = OpenAI(
            api_key=key or NO_KEY,
            base_url=self.url,
            timeout=timeout_s,
            max_retries=0,
            # What is on this machine is not reached through a proxy.
            http_client=DefaultHttpxClient(trust_env=not loopback),
        )

    def __repr__(self) -> str:
        return f"Client({self.url})"

    def stop(self) -> None:
        """No request is tried again; those under way come to their end, and nobody need wait for it: see `threads`."""
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
        impatient: bool = False,
    ) -> Reply | Failure:
        """An answer to a conversation: the likeliest, at temperature 0. Only what is asked for is sent: some endpoints
        refuse fields that they do not know."""
        create: Any = self._openai.chat.completions.with_streaming_response.create
        body: dict[str, Any] = {"messages": list(messages), "max_tokens": max_tokens, "temperature": temperature}
        if response_format is not None:
            body["response_format"] = dict(response_format)
        if logprobs:
            body["logprobs"] = True
        # As `extra_body` it is sent as it is; else every field goes through a walk over types, which costs as much time
        # as the rest of a call.
        return self._ask(lambda: create(model=model, messages=(), extra_body=body), read_reply, model, impatient)

    def embeddings(
        self, model: str, texts: Sequence[str], *, impatient: bool = False
    ) -> list[list[float] | None] | Failure:
        """A vector for each text; None for one that holds something else than numbers."""
        create: Any = self._openai.embeddings.with_streaming_response.create
        body = {"model": model, "input": list(texts), "encoding_format": "float"}
        return self._ask(lambda: create(**body), lambda found: read_vectors(found, len(texts)), model, impatient)

    def _ask(
        self, request: Callable[[], Any], read: Callable[[Any], Read], model: str, impatient: bool
    ) -> Read | Failure:
        """`impatient`: an endpoint that cannot be reached is tried once more only."""
        from openai import APIConnectionError, APIStatusError, APITimeoutError

        deadline = time.monotonic() + self._patience_s
        attempt = 0
        while True:
            wanted_wait = None
            reachable = True
            try:
                return read(json.loads(self._body(request, deadline)))
            except APIStatusError as error:
                why = f"answered {error.status_code}{self._said(error)}"
                self._give_up_if_final(error.status_code, why, model)
                if error.status_code < 500 and error.status_code not in (408, 409, 429):
                    return Failure(why, refused=True)
                wanted_wait = retry_after(error.response.headers)
            except (APITimeoutError, TimeoutError):
                why = f"did not answer within {self._timeout_s:g} s"
            except APIConnectionError as error:
                reachable = False
                why = f"cannot be reached ({_cause(error)})"
            except (ValueError, KeyError, IndexError, TypeError, RecursionError):
                why = "answered with something else than was asked for"
            except Exception as error:  # the edge to the network: a connection can break in any way
                why = f"broke off its answer ({type(error).__name__})"
            attempt += 1
            wait = backoff(attempt) if wanted_wait is None else wanted_wait + _JITTER.uniform(0, FIRST_WAIT_S)
            if wanted_wait is not None and time.monotonic() + wait > deadline:
                return Failure(f"{why}, and asks to wait {wanted_wait:g} s")
            given_up = attempt > (min(self._retries, 1) if impatient and not reachable else self._retries)
            if given_up or time.monotonic() + wait > deadline or self._stopped.wait(wait):
                return Failure(f"{why} ({attempt} times)" if attempt > 1 else why)

    def _body(self, request: Callable[[], Any], deadline: float) -> str:
        """The whole body, within the time limit however slowly it drips, and without the key if it echoes that."""
        deadline = min(deadline, time.monotonic() + self._timeout_s)
        body = bytearray()
        with request() as response:
            for chunk in response.iter_bytes():
                body += chunk
                if time.monotonic() > deadline:
                    raise TimeoutError
                if len(body) > LONGEST_BODY:
                    raise ValueError("too long")
        return redacted(body.decode("utf-8"), *self._secrets)

    def _give_up_if_final(self, status: int, why: str, model: str) -> None:
        mend = {
            401: "the key in OPENAI_API_KEY is not accepted" if self._has_key else "it wants a key: set OPENAI_API_KEY",
            403: f"the key in OPENAI_API_KEY may not use '{model}'",
            404: f"it has no model '{model}', or the address is wrong (most end in /v1)",
        }
        if status in mend:
            said = "" if status in (401, 403) else why.removeprefix(f"answered {status}")
            raise UserError(f"{self._where}: '{self.url}' answered {status}: {mend[status]}{said}") from None

    def _said(self, error: Any) -> str:
        """What the endpoint says of an error, on one line."""
        body = error.body
        said = body.get("message") or body.get("detail") if isinstance(body, dict) else body
        if not isinstance(said, str) or not said.strip():
            return ""
        line = "".join(c if c.isprintable() else " " for c in redacted(said, *self._secrets))
        line = " ".join(line.split())
        return f" ('{line[:200]}{'…' if len(line) > 200 else ''}')"


def is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def backoff(attempt: int) -> float:
    """Half a second, doubled with every attempt, less up to a quarter: many that failed at once return apart."""
    return min(FIRST_WAIT_S * 2.0 ** (attempt - 1), LONGEST_WAIT_S) * _JITTER.uniform(0.75, 1.0)


def retry_after(headers: Any) -> float | None:
    """Seconds that the endpoint asks to wait: `Retry-After` is a number or a date."""
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


def read_reply(found: Any) -> Reply:
    """The first choice. A model may refuse without a word: that is an empty reply, and cannot be read later on."""
    choice = found["choices"][0]
    text = choice["message"]["content"]
    if text is not None and not isinstance(text, str):
        raise ValueError("the content is no text")
    used = found.get("usage") or {}
    counts = [used.get(name) for name in ("prompt_tokens", "completion_tokens")]
    tokens_in, tokens_out = (count if isinstance(count, int) else 0 for count in counts)
    refusal = choice["message"].get("refusal")
    return Reply(
        text or "",
        choice.get("finish_reason") == "length",
        tokens_in,
        tokens_out,
        refusal if isinstance(refusal, str) else "",
        _pieces(choice.get("logprobs")),
    )


def _pieces(found: Any) -> tuple[tuple[bytes, float], ...]:
    """Tokens as bytes: one may hold half a character. None at all where one of them cannot be read."""
    try:
        return tuple(
            (bytes(each["token"].encode() if each.get("bytes") is None else each["bytes"]), float(each["logprob"]))
            for each in (found or {}).get("content") or ()
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        return ()


def read_vectors(found: Any, count: int) -> list[list[float] | None]:
    """In the order of the texts, which is what `index` says."""
    rows = {row["index"]: row["embedding"] for row in found["data"]}
    if len(found["data"]) != count or set(rows) != set(range(count)):
        raise ValueError("not a vector for every text")
    return [_numbers(rows[i]) for i in range(count)]


def _numbers(row: Any) -> list[float] | None:
    if not isinstance(row, list) or not row:
        return None
    if not all(isinstance(x, int | float) and not isinstance(x, bool) for x in row):
        return None
    return [float(x) for x in row]


def _cause(error: BaseException) -> str:
    """The innermost reason, in a few words: `Connection refused`."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return getattr(error, "strerror", None) or type(error).__name__
