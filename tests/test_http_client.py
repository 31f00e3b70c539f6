"""One deadline and one byte limit for whatever a server does: counted by the server, not by a clock.

Every dripping answer would end by itself after thousands of pauses, and every flood after 900 MB.
"""

import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable
from itertools import count
from typing import Any

import httpcore2
import pytest

from support.hostile_server import DRIPS, TRANSPORT, chat_json, escaped, head, hostile_server, whole
from support.servers import port_of_nobody
from vigneron import http_client
from vigneron.config import VllmSamplingConfig
from vigneron.errors import UserError
from vigneron.http_client import LONGEST_ERROR, LONGEST_RESPONSE, HttpClient, Response, Unreachable, cause
from vigneron.remote.vllm.json_server import HttpError, JsonServer
from vigneron.remote.vllm.server_api import VllmServer, connect
from vigneron.sources.client import ChatReply, Client, Failure

KEY = "sk-secret/4f9a1c77e2"
PASSWORD = "hush-4f9a1c77e2"
BUFFERS = 20_000_000
"""More than the sockets of both sides hold."""
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


def by_client(url: str, timeout_s: float) -> str:
    reply = Client(url, "parent", timeout_s=timeout_s, retries=0).chat("grape", HELLO, max_tokens=9)
    assert isinstance(reply, Failure)
    return reply.why


def by_vllm(url: str, timeout_s: float) -> str:
    with pytest.raises(HttpError) as caught:
        JsonServer(url, timeout_s).request("/completions", {}, tries=1)
    return str(caught.value)


HANGS = [way for way in TRANSPORT if "drips" in way or way == "never answers"]
FLOODS = [way for way in TRANSPORT if ("endless" in way or "MB" in way) and "chunks" not in way]


@pytest.mark.parametrize("request_by", [by_client, by_vllm])
@pytest.mark.parametrize("way", HANGS)
def test_no_answer_that_drips_outlives_the_deadline(way: str, request_by: Callable[[str, float], str]) -> None:
    with hostile_server(TRANSPORT[way]) as server:
        for timeout_s in (0.2, 2.0, 20.0, 60.0):  # a busy machine may send nothing within the shortest
            assert request_by(server.url, timeout_s) == f"did not answer within {timeout_s:g} s"
            if server.requested.wait(1.0):
                break
        assert server.connections
        assert server.pauses < DRIPS // 2


FIRST_REQUEST = """
import sys
from support.hostile_server import hostile_server, whole
from vigneron import http_client

within = http_client._within
imported = []

async def noting(timeout_s, send):
    before = set(sys.modules)
    try:
        return await within(timeout_s, send)
    finally:
        imported.extend(sorted(set(sys.modules) - before))

http_client._within = noting
with hostile_server(whole("{}")) as server:
    http_client.HttpClient(server.url).request("/x", {}, timeout_s=60)
print(imported)
"""


def test_the_first_request_imports_nothing_within_its_deadline() -> None:
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", FIRST_REQUEST], env={**os.environ, **path}, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_the_calling_thread_loads_the_tls_roots(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded_by: list[threading.Thread] = []

    def noting() -> ssl.SSLContext:
        loaded_by.append(threading.current_thread())
        return ssl.create_default_context()

    monkeypatch.setattr(httpcore2, "default_ssl_context", noting)
    with pytest.raises(Unreachable):
        HttpClient(f"https://127.0.0.1:{port_of_nobody()}", proxies=False).request("/x", None, timeout_s=300)
    assert loaded_by == [threading.current_thread()]


def anonymous(protocol: int) -> ssl.SSLContext:
    """TLS without a certificate."""
    context = ssl.SSLContext(protocol)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("AECDH-AES128-SHA:@SECLEVEL=0")
    return context


@pytest.mark.parametrize("request_by", [by_client, by_vllm])
def test_a_tls_error_after_the_handshake_is_a_broken_response(
    request_by: Callable[[str, float], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(httpcore2, "default_ssl_context", lambda: anonymous(ssl.PROTOCOL_TLS_CLIENT))

    def serve(listening: socket.socket) -> None:
        with anonymous(ssl.PROTOCOL_TLS_SERVER).wrap_socket(listening.accept()[0], server_side=True) as secure:
            secure.recv(1000)
            os.write(secure.fileno(), b"\x17\x03\x03\x00\x40" + b"x" * 64)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening,))
        thread.start()
        why = request_by(f"https://127.0.0.1:{listening.getsockname()[1]}", 300.0)
        thread.join()
    assert why.startswith(("broke off its response", "lost the connection")), why


@pytest.mark.parametrize("request_by", [by_client, by_vllm])
@pytest.mark.parametrize("way", FLOODS)
def test_no_more_is_read_than_the_limit(way: str, request_by: Callable[[str, float], str]) -> None:
    """Whatever the status; of an error no more than its beginning."""
    of_error = way.startswith(("sends an error", "refuses", "redirects")) or "header" in way or "1xx" in way
    with hostile_server(TRANSPORT[way]) as server:
        why = request_by(server.url, 300.0)
        assert server.sent < (LONGEST_ERROR if of_error else LONGEST_RESPONSE) + BUFFERS
    assert why.startswith(("answered ", "broke off its response", "lost the connection")), why


def test_chunks_that_take_long_to_parse_do_not_outlive_the_deadline() -> None:
    with hostile_server(TRANSPORT["sends endless small chunks"]) as server:
        assert by_client(server.url, 0.3) == "did not answer within 0.3 s"
        assert server.sent < LONGEST_RESPONSE + BUFFERS


def test_a_handshake_that_never_comes_is_under_the_deadline() -> None:
    with hostile_server(TRANSPORT["never answers"]) as server:
        url = server.url.replace("http:", "https:")
        assert by_client(url, 0.2) == "did not answer within 0.2 s"


def test_a_name_without_an_address_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_address(*args: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", no_address)
    with pytest.raises(Unreachable, match=r"^Name or service not known$"):
        HttpClient("http://no-such-host.invalid/v1", proxies=False).request("/x", {}, timeout_s=300)


@pytest.mark.parametrize("url", ["http://a..b/v1", f"http://{'a' * 64}.example/v1", "http://☃.net/v1"])
def test_an_address_that_no_lookup_takes_is_a_user_error(url: str) -> None:
    with pytest.raises(UserError, match=r"^parent: 'http://\S+/v1' is not a URL such as http://127\.0\.0\.1:8000/v1$"):
        Client(url, "parent")
    with pytest.raises(UserError, match=r"^scale\.sampling\.url: 'http://\S+' is not a URL such as "):
        connect(VllmSamplingConfig(kind="vllm", url=url))


def test_only_http_addresses() -> None:
    for url in ("file:///etc/v1", "http:///v1", "there/v1", "ws://there/v1"):
        with pytest.raises(UserError, match="is not a URL such as"):
            HttpClient(url)


@pytest.mark.parametrize(
    ("proxy", "message"),
    [
        (f"ftp://me:{PASSWORD}@there:1", "is not a URL such as http://127.0.0.1:3128"),
        (f"http://me:{PASSWORD}@there:port", "is not a URL such as http://127.0.0.1:3128"),
        ("http://a..b:1", "is not a URL such as http://127.0.0.1:3128"),
        (f"socks5://me:{PASSWORD}@there:1", "is a SOCKS proxy: install the package socksio"),
    ],
)
@pytest.mark.parametrize("variable", ["HTTP_PROXY", "ALL_PROXY"])
def test_a_wrong_proxy_is_a_user_error(
    proxy: str, message: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv(variable, proxy)
    monkeypatch.setitem(sys.modules, "socksio", None)  # not installed
    with pytest.raises(UserError) as caught:
        Client("http://there.example/v1", "parent")
    assert str(caught.value) == f"parent: the proxy in {variable} {message}"


def test_an_error_of_our_own_after_sending_is_not_an_unreachable_server(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*args: Any, **options: Any) -> bytes:
        raise ValueError("a bug")

    monkeypatch.setattr(http_client._CountingStream, "read", broken)
    with hostile_server(whole("{}")) as server, pytest.raises(ValueError, match=r"^a bug$"):
        HttpClient(server.url).request("/x", {}, timeout_s=300)


def test_an_error_of_our_own_is_not_a_malformed_response(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def broken(*args: Any, **options: Any) -> Response:
        calls.append(args)
        raise TypeError("a bug")

    monkeypatch.setattr(HttpClient, "request", broken)
    with pytest.raises(TypeError, match=r"^a bug$"):
        Client("http://127.0.0.1:1/v1", "parent").chat("grape", HELLO, max_tokens=9)
    assert len(calls) == 1


def test_nobody_there() -> None:
    for host in ("127.0.0.1", "localhost"):
        with pytest.raises(Unreachable, match=r"^Connection refused$"):
            HttpClient(f"http://{host}:{port_of_nobody()}", proxies=False).request("/x", None, timeout_s=300)
    assert cause(OSError("odd")) == "OSError"


def test_the_whole_of_a_good_answer_and_the_beginning_of_an_error() -> None:
    numbers = count()
    with hostile_server(lambda to: whole(b"x" * 3_000_000, ["200 OK", "503 Busy"][next(numbers)])(to)) as server:
        client = HttpClient(server.url, KEY)
        assert len(client.request("/x", {}, timeout_s=300).body) == 3_000_000
        busy = client.request("/x", {}, timeout_s=300)
        assert isinstance(busy, Response)
        assert (busy.status, len(busy.body)) == (503, LONGEST_ERROR)


def test_requests_after_one_another_share_a_connection_and_a_lost_one_is_not_used_again() -> None:
    """The server closes each connection after its answer without a word; the next request opens another."""
    with hostile_server(whole(chat_json("hi"))) as server:
        client = Client(server.url, "parent", retries=1)
        replies = [client.chat("grape", HELLO, max_tokens=9) for _ in range(5)]
        assert all(isinstance(reply, ChatReply) for reply in replies)


def test_a_redirect_is_not_followed_and_is_named() -> None:
    way = whole("", "307 Moved", f"Location: http://other.example/{KEY}/v1")
    with hostile_server(way) as server:
        reply = Client(server.url, "parent").chat("grape", HELLO, max_tokens=9)
        assert len(server.connections) == 1
    assert isinstance(reply, Failure)
    assert reply.refused
    assert reply.why == "answered 307 ('it redirects to http://other.example/[key]/v1: set that address')"


def test_a_forked_process_has_its_own_connections() -> None:
    with hostile_server(whole(chat_json("hi"))) as server:
        client = Client(server.url, "parent")
        assert isinstance(client.chat("grape", HELLO, max_tokens=9), ChatReply)
        if (child := os.fork()) == 0:
            os._exit(0 if isinstance(client.chat("grape", HELLO, max_tokens=9), ChatReply) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_no_repr_has_the_key() -> None:
    client, server = Client("http://127.0.0.1:1/v1", "parent"), JsonServer("http://127.0.0.1:1", 1.0, KEY)
    owners = [client, server, VllmServer(server, "1", "m", None), HttpClient("http://127.0.0.1:1", KEY)]
    for owner in owners:
        inner = [vars(value) for value in vars(owner).values() if type(value).__module__.startswith("vigneron")]
        assert KEY not in f"{owner!r} {vars(owner)!r} {inner!r}"


def test_an_error_of_a_vllm_server_does_not_repeat_the_key() -> None:
    for form in (KEY, escaped(KEY), KEY.replace("/", "\\/")):
        way = whole(f'{{"error": "bad {form}"}}', "400 No")
        with hostile_server(way) as server, pytest.raises(HttpError, match=r"^answered 400 \('bad \[key\]'\)$"):
            JsonServer(server.url, 300.0, KEY).request("/x", {})


def test_a_head_alone_is_an_answer() -> None:
    with hostile_server(lambda to: to.write(head("204 Empty", 0))) as server:
        assert JsonServer(server.url, 300.0).request("/x", {}) is None
