"""Access control of the pages: a token, the Host header and the Origin header.

A server on 127.0.0.1 can be reached by every site that is open in the same browser. The Host check stops sites whose
name resolves to 127.0.0.1 (DNS rebinding), the Origin check stops cross-site requests, the token everyone else.
"""

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


class Guard:
    """ASGI middleware. `hosts` are the allowed host names, with port.

    The token comes once in the address (`?token=…`), then in a cookie that scripts and other sites cannot read.
    """

    def __init__(self, app: ASGIApp, *, token: str, hosts: Sequence[str]) -> None:
        self._app, self._token, self._hosts = app, token, frozenset(host.lower() for host in hosts)
        port = next(iter(self._hosts)).rpartition(":")[2]
        # Cookies ignore the port: two servers on one machine must not overwrite each other's.
        self._cookie = f"vigneron-{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
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
        if given is not None and scope["method"] == "GET" and self._is_token(given):
            rest = urlencode([(name, value) for name, value in query if name != "token"])
            # One slash: `//host` would be another site.
            answer = RedirectResponse("/" + scope["path"].lstrip("/") + (f"?{rest}" if rest else ""), 303)
            answer.set_cookie(self._cookie, self._token, httponly=True, samesite="strict")
            return answer
        if not self._is_token(cookie_parser(headers.get("cookie", "")).get(self._cookie, "")):
            return PlainTextResponse("open the address printed in the terminal: it contains the token", 401)
        return None

    def _is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode(), self._token.encode())


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
