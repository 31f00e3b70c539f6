"""The web server: on 127.0.0.1 unless another host is given, protected by a token."""

import errno
import secrets
import socket
from collections.abc import Callable
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.responses import FileResponse, HTMLResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from vigneron.errors import UserError, visible
from vigneron.web.guard import Guard

LOOPBACK = "127.0.0.1"


def serve(app: Starlette, *, port: int, host: str = LOOPBACK, tell: Callable[[str], None]) -> None:
    """Until Ctrl-C. `tell` is called with the address, token included. Port 0: any free port."""
    import uvicorn

    listening = _bound(host, port)
    port = listening.getsockname()[1]
    token = secrets.token_urlsafe(24)
    outside = sorted(own_addresses() - {LOOPBACK}) if host == "0.0.0.0" else []
    shown = (outside or [LOOPBACK])[0] if host == "0.0.0.0" else host
    tell(f"http://{shown}:{port}/?token={token}")
    config = uvicorn.Config(
        Guard(app, token=token, hosts=own_names(host, port)),
        log_level="error",
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    try:
        uvicorn.Server(config).run(sockets=[listening])
    except KeyboardInterrupt:
        pass
    finally:
        listening.close()


def own_names(host: str, port: int) -> list[str]:
    """The host names that requests may have; against other sites whose name resolves to this address."""
    names = {LOOPBACK, "localhost", host} if host in (LOOPBACK, "localhost", "0.0.0.0") else {host}
    if host == "0.0.0.0":
        names |= {socket.gethostname(), socket.getfqdn(), *own_addresses()}
    return [f"{name}:{port}" for name in sorted(names)]


def own_addresses() -> set[str]:
    """This machine's addresses in its network. Safe as host names: no other site can have one."""
    try:
        addresses = {str(each[4][0]) for each in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    except OSError:
        addresses = set()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing; selects the outgoing address
            addresses.add(str(probe.getsockname()[0]))
        except OSError:
            pass
    return addresses


def _bound(host: str, port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen()  # connections may come before the server is ready
    except OSError as error:
        listening.close()
        hint = "; choose another --port" if error.errno == errno.EADDRINUSE else ""
        raise UserError(f"cannot listen on {host}:{port}: {error.strerror}{hint}") from error
    return listening


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("vigneron", "web/templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: visible(value) if isinstance(value, str) else value,
    )


def page(template: str, status: int = 200, **values: Any) -> HTMLResponse:
    return HTMLResponse(_environment().get_template(template).render(values), status)


async def plotly(request: Any) -> FileResponse:
    """From the installed plotly package: nothing is loaded from the network."""
    script = Path(str(resources.files("plotly") / "package_data" / "plotly.min.js"))
    return FileResponse(script, media_type="text/javascript", headers={"Cache-Control": "private, max-age=86400"})


def static_routes() -> list[Route | Mount]:
    folder = str(resources.files("vigneron") / "web" / "static")
    return [Route("/static/plotly.js", plotly), Mount("/static", StaticFiles(directory=folder))]
