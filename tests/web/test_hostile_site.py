"""A hostile site beside the pages, in the same real browser: it changes nothing and reads nothing.

The site is a server on another port, under a name of another site (evil.test) and under our own (127.0.0.1), to which
the browser sends our cookie.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from support.browser import TOKEN, WAIT_MS
from support.two_sites import Place, two_sites

pytestmark = pytest.mark.slow

SITES = ("evil.test", "localhost", "127.0.0.1")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with two_sites(tmp_path) as place:
        yield place


@pytest.fixture
def ours(place: Place, browser: Any) -> Iterator[Any]:
    """Our page, open and let in."""
    context = browser.new_context()
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    page.goto(f"{place.ours}/?token={TOKEN}")
    page.locator("#prompt", has_text="say").wait_for()
    yield page
    context.close()


def attack(ours: Any, place: Place, host: str, script: str, given: Any = None) -> Any:
    """Run a script in a page of the hostile site; the address of our server is its argument."""
    page = ours.context.new_page()
    page.goto(place.site(host))
    assert page.title() == "hostile"
    place.requests.clear()
    result = page.evaluate(script, [place.ours, given])
    place.check_untouched()
    return result


def refused(place: Place, host: str) -> None:
    """All requests were refused; the cookie came with them from the same host alone, and did not help."""
    assert place.requests
    assert {seen.status for seen in place.requests} == {403}, place.requests
    sent = [seen for seen in place.requests if "cookie" in seen.headers]
    assert bool(sent) == (host == "127.0.0.1")


FETCHES = """async ([ours, item]) => {
  const body = JSON.stringify({ item, choice: "a" }), results = [];
  const json = { "Content-Type": "application/json" };
  for (const [path, options] of [
    ["/data/state", {}],
    ["/data/state", { mode: "no-cors" }],
    ["/data/state", { headers: { "X-Vigneron-Key": "0" } }],
    ["/", {}],
    ["/judge", { method: "POST", body }],
    ["/judge", { method: "POST", body, mode: "no-cors" }],
    ["/judge", { method: "POST", body, headers: json }],
    ["/undo", { method: "POST", mode: "no-cors", keepalive: true }],
    ["/undo", { method: "PUT" }],
  ]) {
    try {
      const answer = await fetch(ours + path, { credentials: "include", ...options });
      results.push(answer.type === "opaque" ? "opaque" : await answer.text());
    } catch (error) { results.push(error.name); }
  }
  navigator.sendBeacon(ours + "/undo", body);
  await fetch(ours + "/undo", { method: "POST", mode: "no-cors", credentials: "include" }).catch(() => null);
  return results;
}"""


def test_its_scripts_requests(place: Place, ours: Any) -> None:
    for host in SITES:
        results = attack(ours, place, host, FETCHES, place.session.state()["item"]["id"])
        assert set(results) <= {"TypeError", "opaque"}
        refused(place, host)
        assert len(place.requests) >= 9  # also preflights


INCLUDED = """async ([ours]) => {
  const results = {}, before = new Set(Object.keys(window));
  const load = (name, tag, attributes) => new Promise((done) => {
    const element = document.createElement(tag);
    element.onload = () => { results[name] = "loaded"; done(); };
    element.onerror = () => { results[name] = "error"; done(); };
    Object.assign(element, attributes);
    document.body.append(element);
  });
  await load("json as a script", "script", { src: ours + "/data/state" });
  await load("a script", "script", { src: ours + "/static/common.js" });
  await load("a module", "script", { type: "module", src: ours + "/static/common.js" });
  await load("an image", "img", { src: ours + "/static/vine.svg" });
  await load("json as an image", "img", { src: ours + "/data/state" });
  await load("a style sheet", "link", { rel: "stylesheet", href: ours + "/static/style.css" });
  results.import = await import(ours + "/static/common.js").then(() => "loaded", () => "error");
  await new Promise((done) => {
    const socket = new WebSocket(ours.replace("http", "ws") + "/");
    socket.onopen = () => { results.socket = "loaded"; done(); };
    socket.onerror = () => { results.socket = "error"; done(); };
  });
  await new Promise((done) => {
    const events = new EventSource(ours + "/data/state", { withCredentials: true });
    events.onerror = () => { events.close(); results.events = "error"; done(); };
  });
  return [results, Object.keys(window).filter((name) => !before.has(name))];
}"""


def test_our_files_and_data_included_in_its_page(place: Place, ours: Any) -> None:
    for host in SITES:
        results, new_globals = attack(ours, place, host, INCLUDED)
        assert len(results) == 9
        assert set(results.values()) == {"error"}, results
        assert new_globals == []
        refused(place, host)


FORM = """([ours, item]) => {
  const form = document.createElement("form");
  Object.assign(form, { method: "POST", enctype: "text/plain", action: ours + "/judge" });
  const field = document.createElement("input");
  field.name = `{"item": "${item}", "choice": "a", "x": "`;
  field.value = `"}`;
  form.append(field);
  document.body.append(form);
  form.submit();
}"""


def test_its_forms(place: Place, ours: Any) -> None:
    for host in SITES:
        attack(ours, place, host, FORM, place.session.state()["item"]["id"])
        page = ours.context.pages[-1]
        page.get_by_text("requests from other sites are refused").wait_for()
        refused(place, host)
        place.check_untouched()


FRAMES = """async ([ours]) => {
  for (const [tag, name] of [["iframe", "src"], ["object", "data"], ["embed", "src"]]) {
    const element = document.createElement(tag);
    await new Promise((done) => {
      element.onload = element.onerror = done;
      element[name] = ours + "/";
      document.body.append(element);
    });
  }
}"""


def test_our_page_in_its_frames(place: Place, ours: Any) -> None:
    for host in SITES:
        attack(ours, place, host, FRAMES)
        page = ours.context.pages[-1]
        assert place.requests
        assert not [frame for frame in page.frames[1:] if "Vigneron" in frame.content()]
        assert not [seen for seen in place.requests if seen.path.startswith("/data")], "its script ran"


OPENED = """async ([ours]) => {
  const opened = window.open(ours + "/");
  for (let turn = 0; !opened.closed; turn += 1) {
    if (turn > 1000) return "still open";
    await new Promise((done) => setTimeout(done, 10));
  }
  opened.postMessage({ item: "x", choice: "skip" }, "*");
  try { return opened.document.title; } catch (error) { return error.name; }
}"""


def test_our_page_in_a_window_that_it_opens(place: Place, ours: Any) -> None:
    """The two cannot reach each other: for the opener the window is closed."""
    for host in SITES:
        assert attack(ours, place, host, OPENED) in ("SecurityError", "")
        opened = ours.context.pages[-1]
        opened.wait_for_load_state()
        assert opened.url == f"{place.ours}/"
        assert opened.evaluate("window.opener") is None
        shown = opened.text_content("body")
        assert ("Which is better?" in shown) == (host == "127.0.0.1"), "a link of another site brings no cookie"
        place.check_untouched()


REBOUND = (
    """async (paths) => Promise.all(paths.map(async ([method, path]) => (await fetch(path, { method })).status))"""
)


def test_its_name_that_resolves_to_our_address(place: Place, ours: Any) -> None:
    """DNS rebinding: its page is of our port, and its requests are same-origin ones."""
    page = ours.context.new_page()
    for path in ("/", f"/?token={TOKEN}"):
        assert page.goto(f"http://evil.test:{place.port}{path}").status == 403
    assert page.text_content("body") == "this host name is not allowed"
    tried = [["GET", "/data/state"], ["GET", f"/?token={TOKEN}"], ["POST", "/undo"], ["GET", "/static/common.js"]]
    assert page.evaluate(REBOUND, tried) == [403] * 4
    assert ours.context.cookies(f"http://evil.test:{place.port}") == []
    place.check_untouched()


def test_the_cookie_alone_which_a_server_on_another_port_gets(place: Place, ours: Any) -> None:
    """It can send any header, but has no key: no data, no change, no token."""
    page = ours.context.new_page()
    page.goto(place.site("127.0.0.1"))
    assert page.evaluate("document.cookie") == ""
    assert page.evaluate("localStorage.length") == 0
    page.reload()
    cookie = place.stolen[-1]["cookie"]
    assert cookie.startswith(f"vigneron-{place.port}=")
    assert TOKEN not in cookie
    forged = {"cookie": cookie, "origin": place.ours, "sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}
    value = cookie.partition("=")[2]
    with httpx.Client(base_url=place.ours, headers=forged, trust_env=False) as thief:
        for key in ({}, {"X-Vigneron-Key": value}):
            assert thief.get("/data/state", headers=key).status_code == 401
            assert thief.post("/undo", json={}, headers=key).status_code == 401
        shell = thief.get("/", params={"token": value})
        assert (shell.status_code, "key" in shell.headers.get("location", "")) == (200, False)
        assert "say" not in shell.text, "a prompt"
    place.check_untouched()
    ours.keyboard.press("u")  # with the key it works
    ours.locator("#progress", has_text="0 of 2").wait_for()


def test_the_token_and_the_key_are_in_no_referer_and_no_history(place: Place, ours: Any) -> None:
    secrets = ("token", TOKEN, "key=", ours.evaluate("localStorage.getItem('key')"))
    with ours.expect_navigation():
        ours.locator(".home").click()
    ours.locator("#prompt", has_text="say").wait_for()
    assert [seen.headers["referer"] for seen in place.requests if "referer" in seen.headers] == []
    seen = ours.evaluate(
        "[location.href, document.referrer, document.cookie, ...performance.getEntries().map((one) => one.name)]"
    )
    assert not [text for text in seen if any(secret in text for secret in secrets)]
    ours.evaluate("site => { location.href = site; }", place.site("evil.test"))
    ours.wait_for_url(place.site("evil.test"))
    assert "referer" not in place.stolen[-1]
    assert ours.evaluate("document.referrer") == ""
    history = ours.context.new_cdp_session(ours).send("Page.getNavigationHistory")["entries"]
    assert [entry["url"] for entry in history][1:] == [f"{place.ours}/", place.site("evil.test")]
    assert not [e for e in history if any(secret in e["url"] for secret in secrets)]
