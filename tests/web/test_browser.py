"""The browser itself: it is there, and what a page does wrong is seen."""

from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.responses import HTMLResponse, PlainTextResponse
from starlette.routing import Route

from support.browser import served

pytestmark = pytest.mark.slow


async def page(request: Any) -> HTMLResponse:
    return HTMLResponse("<title>here</title><script>alert(1)</script><img src=x onerror=alert(2)>")


async def missing(request: Any) -> PlainTextResponse:
    return PlainTextResponse("none", 404)


def test_a_script_in_a_page_does_not_run_and_is_complained_of(browser_page: Any) -> None:
    with served(Starlette(routes=[Route("/", page), Route("/{path}", missing)])) as address:
        browser_page.goto(address)
        assert browser_page.title() == "here"
        assert "token" not in browser_page.url
        browser_page.wait_for_load_state("networkidle")
    assert any("Content Security Policy" in text for text in browser_page.complaints)
    assert not any(text.startswith("dialog") for text in browser_page.complaints)
    browser_page.complaints.clear()
