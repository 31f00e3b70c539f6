"""Access control of the pages: a token, the Host header and the Origin header.

A server on 127.0.0.1 can be reached by every site that is open in the same browser. The Host check stops sites whose
name resolves to 127.0.0.1 (DNS rebinding), the Origin check stops cross-site requests, the token everyone else.

A browser sends cookies to every port of a host, so another server on this machine can see ours. Data and changes
therefore need a key as well, which the page's script keeps in local storage: that is of one port alone.
"""

import hashlib
import hmac
from collections.abc import Sequence
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LARGEST_BODY = 2**20
HEADERS = {
    # plotly sets inline styles; scripts are loaded from our own files only, none is inline.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


KEY_HEADER = "X-Vigneron-Key"
DATA = "/data/"
"""What is below needs the key; other paths answer GET requests with pages without data, and with static files."""


def cookie_of(token: str) -> str:
    return _derived(token, "cookie")


def key_of(token: str) -> str:
    return _derived(token, "key")


def _derived(token: str, use: str) -> str:
    """From which neither the token nor another use's value can be computed."""
    return hmac.new(token.encode(), use.encode(), hashlib.sha256).hexdigest()


class Guard:
    """ASGI middleware. `hosts` are the allowed host names, with port.

    The token comes once in the address (`?token=…`). It is exchanged for a cookie that scripts and other sites cannot
    read, and a key in the fragment of the address, which static/common.js moves to local storage.
    """

    def __init__(self, app: ASGIApp, *, token: str, hosts: Sequence[str]) -> None:
        self._app, self._token, self._hosts = app, token, frozenset(host.lower() for host in hosts)
        port = next(iter(self._hosts)).rpartition(":")[2]
        # Cookies ignore the port: two servers on one machine must not overwrite each other's.
        self._cookie = f"vigneron-{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":  # no page has one
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refused = self._refusal(scope)
        if refused is not None:
            await refused(scope, receive, _with_headers(send))
            return
        await self._app(scope, _bounded(receive), _with_headers(send))

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if headers.get("host", "").lower() not in self._hosts:
            return PlainTextResponse("this host name is not allowed", 403)
        origin = headers.get("origin")
        if origin is not None and _host_of(origin) not in self._hosts:
            return PlainTextResponse("requests from other sites are refused", 403)
        # Following a link from another site to a page is allowed; requests by its scripts are not.
        followed = scope["method"] == "GET" and headers.get("sec-fetch-mode") == "navigate"
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not followed:
            return PlainTextResponse("requests from other sites are refused", 403)
        if int(headers.get("content-length", "0") or 0) > LARGEST_BODY:
            return PlainTextResponse("the request is too large", 413)
        query = parse_qsl(scope["query_string"].decode("latin-1"))
        given = dict(query).get("token")
        if given is not None and scope["method"] == "GET" and _equal(given, self._token):
            rest = urlencode([(name, value) for name, value in query if name != "token"])
            # One slash: `//host` would be another site.
            path = "/" + scope["path"].lstrip("/") + (f"?{rest}" if rest else "")
            answer = RedirectResponse(f"{path}#key={key_of(self._token)}", 303)
            answer.set_cookie(self._cookie, cookie_of(self._token), httponly=True, samesite="strict")
            return answer
        known = _equal(cookie_parser(headers.get("cookie", "")).get(self._cookie, ""), cookie_of(self._token))
        if scope["method"] not in ("GET", "HEAD") or scope["path"].startswith(DATA):
            known = known and _equal(headers.get(KEY_HEADER, ""), key_of(self._token))
        if not known:
            return PlainTextResponse("open the address printed in the terminal: it contains the token", 401)
        return None


def _equal(text: str, secret: str) -> bool:
    return hmac.compare_digest(text.encode(), secret.encode())


def _host_of(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:  # not a URL
        return ""


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return sending


def _bounded(receive: Receive) -> Receive:
    """Limits bodies that are sent in chunks, without a length, too."""
    seen = 0

    async def receiving() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        return {"type": "http.disconnect"} if seen > LARGEST_BODY else message

    return receiving
