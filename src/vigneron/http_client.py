"""HTTP requests under one deadline and one byte limit, which cover name lookup, connection, headers, 1xx responses and
body, whatever the status.

One event loop in a daemon thread reads all connections. The deadline cancels a request there, so that no server that
drips can outlive it; the calling thread only waits. Redirects are not followed, and no compressed body is accepted.
"""

import asyncio
import json
import os
import socket
import ssl
import weakref
from collections.abc import Coroutine, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from importlib import import_module
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any
from urllib.request import getproxies, proxy_bypass

import httpcore2
import httpx2
from httpcore2 import AsyncNetworkBackend, AsyncNetworkStream
from pydantic import SecretStr

from vigneron.errors import UserError
from vigneron.redaction import SHORTEST_SECRET, redacted
from vigneron.threads import DaemonPool

if TYPE_CHECKING:
    from concurrent.futures import Future

LONGEST_HEAD = 200_000
"""Bytes that a server may send before the body: 1xx responses and headers."""
LONGEST_RESPONSE = 64_000_000
"""Bytes that it may send after them."""
LONGEST_ERROR = 1_000_000
"""Bytes that are read of the body of an error; the rest is left unread."""
KEEP_IDLE_S = 5.0
READ_BYTES = 16_384
"""Bytes that are parsed before other requests have their turn."""
HEADERS = {
    "User-Agent": "vigneron",
    "Accept": "application/json",
    "Accept-Encoding": "identity",
    "Content-Type": "application/json",
}
PROXY_SCHEMES = ("http", "https", "socks5", "socks5h")
GRACE_S = 5.0
"""The calling thread stops waiting so long after the deadline, should the loop itself be stuck."""


class Unreachable(Exception):
    """No connection: nothing was sent."""


class BrokenResponse(Exception):
    """What arrived is not a whole HTTP response, or too long."""


@dataclass(frozen=True)
class Response:
    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes
    """Of an error, at most `LONGEST_ERROR` bytes."""


class HttpClient:
    """JSON requests to one server; safe to use from several threads.

    `idle`: connections that are kept open between requests. `proxies`: use those of the environment. An invalid address
    or proxy is a `UserError`.
    """

    def __init__(self, url: str, key: str = "", *, idle: int | None = None, proxies: bool = True) -> None:
        self.url, self._idle = url, idle
        self._key = SecretStr(key)
        try:
            parsed = httpx2.URL(url)
            self._address = _core_url(parsed)
        except (httpx2.InvalidURL, ValueError):
            raise UserError(f"'{url}' is not a URL such as http://127.0.0.1:8000/v1") from None
        self._host = parsed.netloc.decode("ascii")
        self._proxy = _proxy_for(parsed) if proxies else None
        # Here, since this reads files: the first request would have to do so within its deadline.
        self._tls = _tls(self._address)
        self._pools: dict[_Loop, httpcore2.AsyncConnectionPool] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({redacted(self.url)})"

    def redacted(self, text: str) -> str:
        """Without secrets: this client's key and those of the environment."""
        key = self._key.get_secret_value()
        return redacted(text, *([key] if len(key) >= SHORTEST_SECRET else []))

    def request(
        self,
        path: str,
        body: Mapping[str, Any] | None,
        *,
        timeout_s: float,
        connect_s: float | None = None,
        longest: int = LONGEST_RESPONSE,
    ) -> Response:
        """POST the body as JSON, or GET without one. `timeout_s` bounds the whole request, `longest` its
        body. Raises `TimeoutError`, `Unreachable` or `BrokenResponse`."""
        loop = _running_loop()
        send = self._send(loop, path, body, connect_s, longest)
        sending: Future[Response] = asyncio.run_coroutine_threadsafe(_within(timeout_s, send), loop)
        try:
            return sending.result(timeout_s + GRACE_S)
        finally:
            sending.cancel()

    async def _send(
        self, loop: "_Loop", path: str, body: Mapping[str, Any] | None, connect_s: float | None, longest: int
    ) -> Response:
        budget = _Budget(LONGEST_HEAD)
        _LEFT.set(budget)
        content = None if body is None else json.dumps(body).encode()
        to = self._address
        headers = {**HEADERS, "Host": self._host}
        if key := self._key.get_secret_value():
            headers["Authorization"] = f"Bearer {key}"
        async with self._pool(loop).stream(
            "GET" if content is None else "POST",
            httpcore2.URL(scheme=to.scheme, host=to.host, port=to.port, target=to.target.rstrip(b"/") + path.encode()),
            headers=list(headers.items()),
            content=content,
            extensions={"timeout": {"connect": connect_s}},
        ) as response:
            budget.left += longest
            named = {name.decode("latin-1").lower(): text.decode("latin-1") for name, text in response.headers}
            failed = not 200 <= response.status < 300
            if not failed and named.get("content-encoding", "identity") not in ("", "identity"):
                raise BrokenResponse("compressed")
            received = bytearray()
            async for chunk in response.aiter_stream():
                received += chunk
                if failed and len(received) >= LONGEST_ERROR:
                    break
            return Response(response.status, named, bytes(received[:LONGEST_ERROR] if failed else received))

    def _pool(self, loop: "_Loop") -> httpcore2.AsyncConnectionPool:
        """Connections belong to a loop: a forked process has another one."""
        if loop not in self._pools:
            pool = httpcore2.AsyncConnectionPool(
                self._tls,
                self._proxy,
                max_connections=None,
                max_keepalive_connections=self._idle,
                keepalive_expiry=KEEP_IDLE_S,
                network_backend=_CountingBackend(),
            )
            self._pools = {loop: pool}
            weakref.finalize(self, _close, loop, pool).atexit = False
        return self._pools[loop]


async def _within(timeout_s: float, send: Coroutine[Any, Any, Response]) -> Response:
    try:
        async with asyncio.timeout(timeout_s):
            return await send
    except (httpcore2.NetworkError, httpcore2.ProtocolError) as error:
        if isinstance(error, httpcore2.ConnectError):
            raise Unreachable(cause(error)) from None
        raise BrokenResponse(type(error).__name__) from None
    except ssl.SSLError as error:  # after the handshake; one within it is a ConnectError
        raise BrokenResponse(error.reason or type(error).__name__) from None
    except (httpcore2.ConnectTimeout, httpcore2.ProxyError) as error:
        raise Unreachable(cause(error)) from None


def cause(error: BaseException) -> str:
    """The innermost cause, such as `Connection refused`."""
    while True:
        inner = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error.__cause__ or error.__context__
        if inner is None:
            break
        error = inner
    if isinstance(error, OSError) and (error.errno or 0) > 0 and not isinstance(error, ssl.SSLError):
        return os.strerror(error.errno or 0)
    return getattr(error, "strerror", None) or type(error).__name__


def _core_url(url: httpx2.URL, schemes: tuple[str, ...] = ("http", "https")) -> httpcore2.URL:
    if url.scheme not in schemes or not url.host:
        raise ValueError(f"not {' or '.join(schemes)}, or without a host")
    url.raw_host.decode("ascii").encode("idna")  # as the lookup does: raises for an empty or too long label
    return httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path or b"/")


def _tls(url: httpcore2.URL) -> ssl.SSLContext | None:
    return httpcore2.default_ssl_context() if url.scheme == b"https" else None


def _proxy_for(to: httpx2.URL) -> httpcore2.Proxy | None:
    """The proxy that the environment names for this address. Errors do not repeat it: it may contain a password."""
    named = getproxies()
    variable = to.scheme if named.get(to.scheme) else "all"
    found = named.get(variable)
    if not found or proxy_bypass(to.host if to.port is None else f"{to.host}:{to.port}"):
        return None
    where = f"the proxy in {variable.upper()}_PROXY"
    try:
        proxy = httpx2.Proxy(found if "://" in found else f"http://{found}")
        url = _core_url(proxy.url, PROXY_SCHEMES)
    except (httpx2.InvalidURL, ValueError):
        raise UserError(f"{where} is not a URL such as http://127.0.0.1:3128") from None
    if url.scheme.startswith(b"socks"):
        try:
            import_module("socksio")
        except ImportError:
            raise UserError(f"{where} is a SOCKS proxy: install the package socksio") from None
    return httpcore2.Proxy(url, auth=proxy.raw_auth, ssl_context=_tls(url))


# ----------------------------------------------------------------------------------------------------- byte limit


@dataclass
class _Budget:
    left: int


_LEFT: ContextVar[_Budget] = ContextVar("bytes left of the current request")


class _CountingStream(AsyncNetworkStream):
    """A connection that counts what the current request receives, before any of it is parsed."""

    def __init__(self, stream: AsyncNetworkStream) -> None:
        self._stream = stream

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data = await self._stream.read(min(max_bytes, READ_BYTES), timeout)
        budget = _LEFT.get()
        budget.left -= len(data)
        if budget.left < 0:
            raise BrokenResponse("too long")
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> AsyncNetworkStream:
        return _CountingStream(await self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class _CountingBackend(AsyncNetworkBackend):
    def __init__(self) -> None:
        self._backend = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> AsyncNetworkStream:
        return _CountingStream(await self._backend.connect_tcp(host, port, timeout, local_address, socket_options))

    async def sleep(self, seconds: float) -> None:
        await self._backend.sleep(seconds)


# ----------------------------------------------------------------------------------------------------------- loop


class _Loop(asyncio.SelectorEventLoop):
    """Looks names up in daemon threads: Python waits for those of asyncio before it exits."""

    def __init__(self) -> None:
        super().__init__()
        self._lookups = DaemonPool(8, "lookup")

    async def getaddrinfo(
        self, host: Any, port: Any, *, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
    ) -> Any:
        return await asyncio.wrap_future(
            self._lookups.submit(socket.getaddrinfo, host, port, family, type, proto, flags), loop=self
        )


_loop: _Loop | None = None
_starting = Lock()


def _running_loop() -> _Loop:
    """The process's loop, started at the first request, before its deadline counts."""
    global _loop
    with _starting:
        if _loop is None:
            _loop = _Loop()
            Thread(target=_loop.run_forever, name="http", daemon=True).start()
            # The first call of the backend imports its modules.
            asyncio.run_coroutine_threadsafe(_CountingBackend().sleep(0), _loop).result()
        return _loop


def _forget_loop() -> None:
    """A forked process has the parent's loop, but not its thread."""
    global _loop, _starting
    _loop, _starting = None, Lock()


os.register_at_fork(after_in_child=_forget_loop)


def _close(loop: _Loop, pool: httpcore2.AsyncConnectionPool) -> None:
    if loop is _loop:
        asyncio.run_coroutine_threadsafe(pool.aclose(), loop)
