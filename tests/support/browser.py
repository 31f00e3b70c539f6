"""A real browser, and an app served to it as `vigneron view` and `vigneron label` serve theirs."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = Path("/usr/bin/chromium")
TOKEN = "vine-and-trellis"
LOOPBACK = "127.0.0.1"
WAIT_MS = 180_000
"""For what comes in a second, on however slow a machine."""


@contextmanager
def served(app: Any) -> Iterator[str]:
    """The address, with the token, of an app that is served on a free port behind the guard."""
    from vigneron.web.guard import Guard
    from vigneron.web.serve import own_names

    with listening_on_port(lambda port: Guard(app, token=TOKEN, hosts=own_names(LOOPBACK, port))) as port:
        yield f"http://{LOOPBACK}:{port}/?token={TOKEN}"


@contextmanager
def listening_on_port(make: Callable[[int], Any]) -> Iterator[int]:
    """The free port on which an app, made for it, is served."""
    import uvicorn

    listening = socket.socket()
    listening.bind((LOOPBACK, 0))
    port = listening.getsockname()[1]
    server = uvicorn.Server(
        uvicorn.Config(make(port), log_level="error", lifespan="off", ws="none", timeout_graceful_shutdown=1)
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            time.sleep(0.01)
        yield port
    finally:
        server.should_exit = True
        thread.join(10)
        listening.close()


def reason_to_skip() -> str | None:
    if not CHROMIUM.exists():
        return f"there is no browser at {CHROMIUM} (Debian's package chromium)"
    try:
        import playwright  # noqa: F401
    except ImportError:
        return "playwright is not installed"
    return None


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        names = "--host-resolver-rules=MAP *.test 127.0.0.1"  # other sites, on this machine
        words = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", names]
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=words, timeout=WAIT_MS)
        try:
            yield browser
        finally:
            browser.close()


def expecting(locator: Any) -> Any:
    """Playwright's `expect`, with as long to wait as a page has. Unlike `wait_for_function` with an expression, which
    evaluates a string time and again, it does nothing that the policy of our pages forbids."""
    from playwright.sync_api import expect  # not where the browser is missing

    expect.set_options(timeout=WAIT_MS)
    return expect(locator)


class Complaints(list[str]):
    """What a page should never do: log an error, open a dialog, raise, or send a request to another machine."""

    allowed = "http://127.0.0.1:"
    """What else an address may start with."""

    def watch(self, page: Any) -> None:
        page.on("console", lambda message: self.append(f"console: {message.text}") if message.type == "error" else None)
        page.on("pageerror", lambda error: self.append(f"raised: {error}"))
        page.on("dialog", self._dialog)
        page.on("request", lambda request: self._request(request.url))

    def _dialog(self, dialog: Any) -> None:
        self.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _request(self, url: str) -> None:
        if not url.startswith((f"http://{LOOPBACK}:", "data:", "blob:", "about:", self.allowed)):
            self.append(f"external request: {url}")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Skipped without Chromium; failed where VIGNERON_NEED_BROWSER=1 says that it must be there.

    A file's, and no longer: while Playwright runs, this thread has an event loop, and the tests of other files could
    not start theirs."""
    reason = reason_to_skip()
    if reason is not None:
        if os.environ.get("VIGNERON_NEED_BROWSER") == "1":
            pytest.fail(f"VIGNERON_NEED_BROWSER is set, and {reason}")
        pytest.skip(reason)
    with chromium() as started:
        yield started


@pytest.fixture
def browser_page(browser: Any) -> Iterator[Any]:
    """A page of a context of its own; at the end nothing may have been complained of.

    What a test expects to be complained of it takes out of `page.complaints`.
    """
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    page.complaints = Complaints()
    page.complaints.watch(page)
    yield page
    context.close()
    assert not page.complaints, "\n".join(page.complaints)
