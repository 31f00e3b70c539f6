"""Who may talk to a page: one who has the token, from a page of ours, under a name that is ours.

A page on 127.0.0.1 can be reached by every site that is open in the same browser. The Host is checked against a site
that points its own name at 127.0.0.1, the Origin against one that sends requests, the token against everybody else.
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
    # plotly sets styles of its own; scripts come from our own files alone, and none is in a page.
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
    """ASGI around an app. `hosts` are the names (with port) under which it is served.

    The token comes once in the address (`?token=…`), and then in a cookie that no script and no other site can use.
    """

    def __init__(self, app: ASGIApp, *, token: str, hosts: Sequence[str]) -> None:
        self._app, self._token, self._hosts = app, token, frozenset(host.lower() for host in hosts)
        port = next(iter(self._hosts)).rpartition(":")[2]
        # Cookies know no ports: two pages on one machine must not overwrite each other's.
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
            return PlainTextResponse("this page is not served under that name", 403)
        origin = headers.get("origin")
        if origin is not None and _host_of(origin) not in self._hosts:
            return PlainTextResponse("a page of another site asked", 403)
        # A link from elsewhere to a page may be followed; what changes something, or is read by a script, may not.
        followed = scope["method"] == "GET" and headers.get("sec-fetch-mode") == "navigate"
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not followed:
            return PlainTextResponse("a page of another site asked", 403)
        if int(headers.get("content-length", "0") or 0) > LARGEST_BODY:
            return PlainTextResponse("too large", 413)
        query = parse_qsl(scope["query_string"].decode("latin-1"))
        given = dict(query).get("token")
        if given is not None and scope["method"] == "GET" and self._is_token(given):
            rest = urlencode([(name, value) for name, value in query if name != "token"])
            # One slash: `//host` would lead to another site.
            answer = RedirectResponse("/" + scope["path"].lstrip("/") + (f"?{rest}" if rest else ""), 303)
            answer.set_cookie(self._cookie, self._token, httponly=True, samesite="strict")
            return answer
        if not self._is_token(cookie_parser(headers.get("cookie", "")).get(self._cookie, "")):
            return PlainTextResponse("open the address that the terminal shows: it has the token", 401)
        return None

    def _is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode(), self._token.encode())


def _host_of(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:  # no address at all
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
    """What is sent in pieces, without its length, is bounded as well."""
    seen = 0

    async def receiving() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        return {"type": "http.disconnect"} if seen > LARGEST_BODY else message

    return receiving
