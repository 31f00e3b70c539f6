"""The page of `vigneron label`. The server knows what is judged and what comes next; the page only shows and asks."""

import json
from collections.abc import Callable
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from vigneron.labels.items import BadChoice, Kind
from vigneron.labels.session import ConflictingLabel, Session, UnknownItem
from vigneron.web.pages import page, static_routes

TEMPLATES: dict[Kind, str] = {
    "pairs": "label_compare.html",
    "best": "label_compare.html",
    "scores": "label_scores.html",
}


def label_app(session: Session, kind: Kind, then: str = "") -> Starlette:
    """`then` is what to do with the file once all is judged."""

    async def index(request: Request) -> Response:
        return page(TEMPLATES[kind], kind=kind, labeller=session.labeller, out=str(session.out.path), then=then)

    async def state(request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(session.state))

    async def judge(request: Request) -> Response:
        said = await _said(request)
        if not isinstance(said, dict) or not isinstance(said.get("item"), str):
            return _refused(400, 'a judgement is {"item": …, "choice": …}')
        return await _done(session, lambda: session.judge(said["item"], said.get("choice")))

    async def undo(request: Request) -> Response:
        return await _done(session, session.undo)

    return Starlette(
        routes=[
            Route("/", index),
            Route("/state", state),
            Route("/judge", judge, methods=["POST"]),
            Route("/undo", undo, methods=["POST"]),
            *static_routes(),
        ]
    )


async def _said(request: Request) -> Any:
    """None for what is not JSON."""
    try:
        return json.loads(await request.body())
    except (ValueError, RecursionError, ClientDisconnect):
        return None


async def _done(session: Session, work: Callable[[], None]) -> Response:
    """What came of it is what the page shows next; what could not be done is one line."""
    try:
        await run_in_threadpool(work)
    except BadChoice as error:
        return _refused(400, str(error))
    except UnknownItem:
        return _refused(404, "unknown item: reload the page")
    except ConflictingLabel:
        return _refused(409, "this item already has another label: undo it first")
    except OSError as error:
        return _refused(507, f"not recorded: cannot write '{session.journal.path}': {error.strerror}")
    return JSONResponse(await run_in_threadpool(session.state))


def _refused(status: int, line: str) -> JSONResponse:
    return JSONResponse({"error": line}, status)
