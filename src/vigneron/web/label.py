"""The page of `vigneron label`. The server keeps the state; the page shows it and sends judgements."""

import json
from collections.abc import Callable
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from vigneron.errors import UserError, visible
from vigneron.labels.items import BadChoice, Kind
from vigneron.labels.session import ConflictingLabel, Session, UnknownItem
from vigneron.web.serve import page, static_routes

TEMPLATES: dict[Kind, str] = {
    "pairs": "label_compare.html",
    "best": "label_compare.html",
    "scores": "label_scores.html",
    "steps": "label_steps.html",
}


def label_app(session: Session, kind: Kind, then: Callable[[int], str] | None = None) -> Starlette:
    """`then(rows)`: the command that uses so many rows of the file."""

    def current() -> dict[str, Any]:
        state = session.state()
        return {**state, "then": _line(then, state["rows"]) if then is not None and state["rows"] else None}

    async def index(request: Request) -> Response:
        return page(TEMPLATES[kind], kind=kind, labeller=session.labeller, out=str(session.out.path))

    async def state(request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(current))

    async def judge(request: Request) -> Response:
        body = await _json_body(request)
        if not isinstance(body, dict) or not isinstance(body.get("item"), str):
            return _refused(400, 'send {"item": …, "choice": …}')
        return await _done(session, lambda: session.judge(body["item"], body.get("choice")), current)

    async def undo(request: Request) -> Response:
        return await _done(session, session.undo, current)

    return Starlette(
        routes=[
            Route("/", index),
            Route("/data/state", state),
            Route("/judge", judge, methods=["POST"]),
            Route("/undo", undo, methods=["POST"]),
            *static_routes(),
        ]
    )


async def _json_body(request: Request) -> Any:
    """None if it is not JSON."""
    try:
        return json.loads(await request.body())
    except (ValueError, RecursionError, ClientDisconnect):
        return None


def _line(then: Callable[[int], str], rows: int) -> str:
    """Without its recipe there is no command: the reason stands in its place."""
    try:
        return visible(then(rows))
    except UserError as error:
        return visible(str(error))


async def _done(session: Session, work: Callable[[], None], current: Callable[[], dict[str, Any]]) -> Response:
    """Answer with the new state, or with an error in one line."""
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
    return JSONResponse(await run_in_threadpool(current))


def _refused(status: int, line: str) -> JSONResponse:
    return JSONResponse({"error": visible(line)}, status)
