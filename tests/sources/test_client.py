"""The client against a server that misbehaves by script: what is retried, what is not, and where the key is."""

import io
import json
import logging
import re
import time
from collections.abc import Iterator
from email.utils import formatdate
from itertools import pairwise
from threading import Event
from types import SimpleNamespace

import pytest

from support.servers import Seen, Sent, chat, port_of_nobody, refusal, serving
from vigneron.errors import UserError
from vigneron.sources import client as client_module
from vigneron.sources.client import ChatReply, Client, Failure, backoff, base_url, is_loopback, retry_after

KEY = "sk-secret-4f9a1c77e2"
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.setattr(client_module, "FIRST_WAIT_S", 0.02)


def ask(url: str, *, timeout_s: float = 60.0, retries: int = 3, total_timeout_s: float = 600.0) -> ChatReply | Failure:
    client = Client(url, "parent", timeout_s=timeout_s, retries=retries, total_timeout_s=total_timeout_s)
    return client.chat("grape", HELLO, max_tokens=9)


def test_an_answer_and_what_was_asked() -> None:
    with serving(lambda seen, n: chat("hi\n")) as server:
        assert ask(server.url) == ChatReply("hi\n", False, 7, 3)
    (seen,) = server.seen
    assert seen.path == "/v1/chat/completions"
    assert seen.body == {"model": "grape", "messages": HELLO, "max_tokens": 9, "temperature": 0.0}
    assert seen.headers["authorization"] == f"Bearer {KEY}"


def test_a_reply_that_the_limit_cut_and_one_without_words() -> None:
    with serving(lambda seen, n: chat("hi", "length") if n == 0 else chat(None)) as server:
        assert ask(server.url).truncated
        assert ask(server.url) == ChatReply("", False, 7, 3)


GOOD = chat("hi")
BROKEN = {
    "500": refusal(500),
    "503": Sent(503, "<html>busy</html>"),
    "408": refusal(408),
    "429 without Retry-After": refusal(429),
    "no JSON": Sent(body="<html>hi</html>"),
    "empty": Sent(body=""),
    "truncated JSON": Sent(body=GOOD.body[: len(GOOD.body) // 2]),
    "cut mid-body": Sent(body=GOOD.body, cut=20),
    "cut before the body": Sent(body=GOOD.body, cut=0),
    "no choices": Sent(body='{"choices": []}'),
    "wrong shape": Sent(body='{"answer": "hi"}'),
    "a list": Sent(body="[1]"),
    "null": Sent(body="null"),
    "content is a number": Sent(body=json.dumps({"choices": [{"message": {"content": 5}}]})),
    "deep": Sent(body="[" * 100_000),
    "not UTF-8": Sent(body="hi", headers={"Content-Encoding": "gzip"}),
}


@pytest.mark.parametrize("sent", BROKEN.values(), ids=BROKEN)
def test_what_is_broken_once_is_retried_and_what_stays_broken_is_a_failure(sent: Sent) -> None:
    with serving(lambda seen, n: sent if n == 0 else GOOD) as server:
        assert ask(server.url) == ChatReply("hi", False, 7, 3)
        assert len(server.seen) == 2
    with serving(lambda seen, n: sent) as server:
        failure = ask(server.url, retries=2)
        assert isinstance(failure, Failure)
        assert "(3 times)" in failure.why
        assert not failure.refused
        assert len(server.seen) == 3


@pytest.mark.parametrize(
    "sent", [Sent(body=GOOD.body, delay=60.0), Sent(body=GOOD.body, drip=1.0)], ids=["late", "drip"]
)
def test_a_server_that_is_slow_or_drips_is_not_waited_for(sent: Sent) -> None:
    with serving(lambda seen, n: sent) as server:
        assert ask(server.url, timeout_s=0.3, retries=1) == Failure("did not answer within 0.3 s (2 times)")


def test_retry_after_is_waited_for() -> None:
    with serving(lambda seen, n: refusal(429, Retry_After="1") if n == 0 else GOOD) as server:
        assert isinstance(ask(server.url), ChatReply)
        first, second = (seen.at for seen in server.seen)
        assert second - first >= 1.0


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The client's waits, which take no time by a clock that nothing else moves."""
    waited: list[float] = []

    class Clocked(Event):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            waited.append(timeout)
            return self.is_set()

    clock = SimpleNamespace(time=time.time, monotonic=lambda: sum(waited))
    monkeypatch.setattr(client_module, "Event", Clocked)
    monkeypatch.setattr(client_module, "time", clock)
    return waited


def test_a_date_in_retry_after_is_waited_for_too(waits: list[float]) -> None:
    when = formatdate(time.time() + 7200, usegmt=True)
    with serving(lambda seen, n: refusal(503, Retry_After=when) if n == 0 else GOOD) as server:
        assert isinstance(ask(server.url, total_timeout_s=10_000), ChatReply)
    (wait,) = waits
    assert 3600 < wait < 7201
    assert retry_after({"retry-after": "soon"}) is None
    assert retry_after({"retry-after": "nan"}) is None
    assert retry_after({"retry-after": "-1"}) is None
    assert retry_after({}) is None


def test_a_wait_beyond_the_patience_is_a_failure_at_once(waits: list[float]) -> None:
    with serving(lambda seen, n: refusal(429, Retry_After="3600")) as server:
        failure = ask(server.url)
    assert failure == Failure("answered 429 ('no') with Retry-After 3600 s")
    assert waits == []


def test_the_patience_bounds_all_retries_together(waits: list[float]) -> None:
    with serving(lambda seen, n: refusal(429, Retry_After="3000")) as server:
        failure = ask(server.url, retries=200, total_timeout_s=10_000)
    assert failure == Failure("answered 429 ('no') with Retry-After 3000 s")
    assert len(server.seen) == 4


def test_waits_grow_and_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "FIRST_WAIT_S", 0.5)
    assert all(0.375 <= backoff(1) <= 0.5 for _ in range(50))
    assert all(1.5 <= backoff(3) <= 2.0 for _ in range(50))
    assert all(6.0 <= backoff(30) <= 8.0 for _ in range(50))
    assert len({backoff(1) for _ in range(20)}) == 20


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (401, "OPENAI_API_KEY"),
        (403, "may not use 'grape'"),
        (404, "no model 'grape', or the address is wrong (most end in /v1) ('no such model')"),
    ],
)
def test_what_no_retry_mends_is_an_error_at_once(status: int, message: str) -> None:
    with (
        serving(lambda seen, n: refusal(status, "no such model")) as server,
        pytest.raises(UserError, match=f"^parent: '{server.url}' answered {status}: .*{re.escape(message)}"),
    ):
        ask(server.url)
    assert len(server.seen) == 1


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_request_that_is_refused_is_a_failure_without_retries(status: int) -> None:
    with serving(lambda seen, n: refusal(status, "too\n\x1b[31mlong" + "!" * 500)) as server:
        failure = ask(server.url)
    assert failure.refused
    assert failure.why.startswith(f"answered {status} ('too [31mlong!!")
    assert len(failure.why) < 300
    assert len(server.seen) == 1


def test_nobody_there_is_a_failure_and_the_impatient_try_twice() -> None:
    client = Client(f"http://127.0.0.1:{port_of_nobody()}/v1", "parent", retries=8)
    failure = client.chat("grape", HELLO, max_tokens=1, fail_fast=True)
    assert failure == Failure("cannot be reached (Connection refused) (2 times)")


def test_a_stopped_client_tries_nothing_again() -> None:
    with serving(lambda seen, n: refusal(500)) as server:
        client = Client(server.url, "parent", retries=20)
        client.stop()
        assert client.chat("grape", HELLO, max_tokens=1) == Failure("answered 500 ('no')")


def test_a_loopback_server_needs_no_key_and_others_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    with serving(lambda seen, n: GOOD) as server:
        assert isinstance(ask(server.url), ChatReply)
    assert server.seen[0].headers["authorization"] == "Bearer no-key-needed"
    with pytest.raises(UserError, match=r"^parent: OPENAI_API_KEY is not set, and 'https://api\.openai\.com/v1'"):
        Client(None, "parent")
    assert is_loopback("http://localhost:80/v1")
    assert is_loopback("http://[::1]:80/v1")
    assert not is_loopback("http://127.evil.example/v1")
    assert not is_loopback("http://10.0.0.1/v1")


def test_a_proxy_is_not_asked_for_what_is_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{port_of_nobody()}")
    monkeypatch.setenv("NO_PROXY", "")
    with serving(lambda seen, n: GOOD) as server:
        assert isinstance(ask(server.url), ChatReply)


def test_the_address_is_the_configs_or_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    assert base_url(None, "parent.url") == "https://api.openai.com/v1"
    monkeypatch.setenv("OPENAI_BASE_URL", "http://there:1/v1/")
    assert base_url(None, "parent.url") == "http://there:1/v1"
    assert base_url("http://here:1/v1/", "parent.url") == "http://here:1/v1"
    for secret in (f"http://me:{KEY}@there/v1", f"http://there/v1?key={KEY}", f"http://{KEY}@there", f"file:///{KEY}"):
        monkeypatch.setenv("OPENAI_BASE_URL", secret)
        with pytest.raises(UserError, match="OPENAI_BASE_URL should") as caught:
            base_url(None, "parent.url")
        assert KEY not in str(caught.value)


def echo_the_key(seen: Seen, before: int) -> Sent:
    """A server that puts the key wherever it can."""
    key = seen.headers["authorization"]
    return [refusal(400, f"bad {key}"), refusal(401, f"bad {key}"), refusal(404, f"bad {key}"), chat(f"it is {key}")][
        before
    ]


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """All that is logged, by whomever."""
    text, level = io.StringIO(), logging.root.level
    handler = logging.StreamHandler(text)
    logging.root.addHandler(handler)
    logging.root.setLevel(logging.DEBUG)
    yield text
    logging.root.setLevel(level)
    logging.root.removeHandler(handler)


def test_a_server_that_echoes_the_key_is_not_repeated(logged: io.StringIO) -> None:
    with serving(echo_the_key) as server:
        client = Client(server.url, "parent")
        said = [repr(client), repr(client.chat("grape", HELLO, max_tokens=1))]
        for _ in range(2):
            with pytest.raises(UserError) as caught:
                client.chat("grape", HELLO, max_tokens=1)
            said.append(str(caught.getrepr(style="long", chain=True)))
        reply = client.chat("grape", HELLO, max_tokens=1)
    assert reply.text == "it is Bearer [key]"
    assert KEY not in "".join(said) + logged.getvalue()
    assert logged.getvalue(), "httpcore2 logs its requests"
    assert len(list(pairwise(server.seen))) == 3


def test_a_key_that_no_header_can_hold_is_refused_without_being_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", f"{KEY}\nX-Other: 1")
    with pytest.raises(UserError, match="contains a character that is not printable ASCII") as caught:
        Client("http://127.0.0.1:1/v1", "parent")
    assert KEY not in str(caught.value)
