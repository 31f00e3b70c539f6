"""The pages of `vigneron label` and a hostile site, on two ports; what was requested from each is recorded."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Route

from support.browser import TOKEN, listening_on_port
from support.labelling import session_of, write_comparisons
from vigneron.labels.session import Session
from vigneron.web.guard import Guard
from vigneron.web.label import label_app
from vigneron.web.serve import own_names

ICON = "/favicon.ico"
"""Which the browser requests for itself."""


@dataclass
class Seen:
    """A request that reached a server, and the status of the answer."""

    path: str
    headers: Headers
    status: int = 0


@dataclass
class Place:
    session: Session
    requests: list[Seen] = field(default_factory=list)
    """Of our server."""
    stolen: list[Headers] = field(default_factory=list)
    """Headers of the requests to the hostile one."""
    port: int = 0
    evil_port: int = 0

    @property
    def ours(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def site(self, host: str) -> str:
        return f"http://{host}:{self.evil_port}/"

    def recorded(self, app: Any) -> Any:
        async def recording(scope: Any, receive: Any, send: Any) -> None:
            seen = Seen(scope["path"], Headers(scope=scope))
            if scope["path"] != ICON:
                self.requests.append(seen)

            async def sending(message: Any) -> None:
                seen.status = message.get("status", seen.status)
                await send(message)

            await app(scope, receive, sending)

        return recording

    def check_untouched(self) -> None:
        state = self.session.state()
        assert (state["done"], state["undo"]) == (1, True)


@contextmanager
def two_sites(folder: Path) -> Iterator[Place]:
    """Two items to label, of which one is labelled: it could be undone."""
    session = session_of(write_comparisons(folder, 2), folder / "pairs.jsonl")
    session.judge(session.state()["item"]["id"], "a")
    place = Place(session)
    app = label_app(session, "pairs")

    def site(request: Request) -> HTMLResponse:
        if request.url.path != ICON:
            place.stolen.append(request.headers)
        return HTMLResponse("<title>hostile</title><body>hostile</body>")

    def ours(port: int) -> Any:
        return place.recorded(Guard(app, token=TOKEN, hosts=own_names("127.0.0.1", port)))

    with (
        listening_on_port(ours) as place.port,
        listening_on_port(lambda port: Starlette(routes=[Route("/{path:path}", site)])) as place.evil_port,
    ):
        yield place
