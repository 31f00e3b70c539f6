"""Who is let in: driven over real HTTP, as a browser or a foreign site would."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from vigneron.web.guard import KEY_HEADER, LARGEST_BODY, Guard, _equal, cookie_of, key_of
from vigneron.web.serve import own_names

TOKEN = "vine-and-trellis"
HERE = "127.0.0.1:8765"
COOKIE, KEY = cookie_of(TOKEN), key_of(TOKEN)


async def echo(request: Request) -> PlainTextResponse:
    return PlainTextResponse(f"{request.method} {request.url.path} {len(await request.body())}")


def client(cookie: str | None = COOKIE, key: str | None = KEY, host: str = HERE) -> TestClient:
    app = Starlette(routes=[Route("/{path:path}", echo, methods=["GET", "POST"])])
    guarded = Guard(app, token=TOKEN, hosts=own_names("127.0.0.1", 8765))
    cookies = {"vigneron-8765": cookie} if cookie is not None else None
    headers = {KEY_HEADER: key} if key is not None else None
    return TestClient(guarded, base_url=f"http://{host}", follow_redirects=False, cookies=cookies, headers=headers)


def test_the_address_with_the_token_lets_in_and_hides_it() -> None:
    browser = client(cookie=None)
    answer = browser.get("/runs/a?token=vine-and-trellis&step=3")
    assert answer.status_code == 303
    assert answer.headers["location"] == f"/runs/a?step=3#key={KEY}"
    assert "HttpOnly" in answer.headers["set-cookie"]
    assert "SameSite=strict" in answer.headers["set-cookie"]


def test_the_redirect_never_leads_to_another_site() -> None:
    answer = client(cookie=None).get("//evil.example/?token=vine-and-trellis", headers={"host": HERE})
    assert not answer.headers.get("location", "/").startswith("//")


@pytest.mark.parametrize("cookie", [None, "", "vine", TOKEN, KEY, f"{COOKIE}-"])
def test_without_the_token_nothing_is_answered(cookie: str | None) -> None:
    answer = client(cookie).get("/runs")
    assert answer.status_code == 401
    assert "GET" not in answer.text


@pytest.mark.parametrize("key", [None, "", TOKEN, COOKIE, KEY.upper()])
def test_data_and_changes_need_the_key_too(key: str | None) -> None:
    """Servers on other ports of this machine see the cookie."""
    assert client(key=key).get("/runs").status_code == 200
    assert client(key=key).get("/data/runs").status_code == 401
    assert client(key=key).head("/data/runs").status_code == 401
    assert client(key=key).post("/runs").status_code == 401
    assert client().get("/data/runs").status_code == 200
    assert client().post("/runs").status_code == 200


def test_a_web_socket_is_refused() -> None:
    with pytest.raises(WebSocketDisconnect), client().websocket_connect("/"):
        pass


def test_with_the_cookie_the_app_answers_with_the_headers() -> None:
    answer = client().get("/runs")
    assert (answer.status_code, answer.text) == (200, "GET /runs 0")
    policy = answer.headers["content-security-policy"]
    assert "script-src 'self';" in policy
    assert "default-src 'none'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8765", "127.0.0.1:8766", "127.0.0.1", ""])
def test_another_host_is_refused(host: str) -> None:
    assert client().get("/", headers={"host": host}).status_code == 403


@pytest.mark.parametrize("host", [HERE, "localhost:8765", "LOCALHOST:8765"])
def test_our_own_names_are_served(host: str) -> None:
    assert client().get("/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "http://127.0.0.1:9999", "null", "http://127.0.0.1.evil", "http://["]
)
def test_another_origin_is_refused(origin: str) -> None:
    assert client().post("/label", headers={"origin": origin}).status_code == 403


def test_our_own_origin_is_served() -> None:
    assert client().post("/label", headers={"origin": f"http://{HERE}"}).status_code == 200


def test_a_request_of_another_site_without_an_origin_is_refused() -> None:
    assert (
        client().get("/data", headers={"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}).status_code == 403
    )
    assert client().post("/data", headers={"sec-fetch-site": "cross-site"}).status_code == 403


def test_a_body_is_bounded_with_and_without_its_length() -> None:
    assert client().post("/label", content=b"x" * (LARGEST_BODY + 1)).status_code == 413
    pieces = (b"x" * 2**16 for _ in range(LARGEST_BODY // 2**16 + 2))
    with pytest.raises(ClientDisconnect):
        client().post("/label", content=pieces)


@given(st.text(max_size=40))
def test_no_other_text_is_the_token(text: str) -> None:
    assert _equal(text, TOKEN) == (text == TOKEN)
