"""Templates, in which everything is escaped, and static files, including plotly's script."""

from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import FileResponse, HTMLResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from vigneron.errors import visible


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("vigneron", "web/templates"), autoescape=True, undefined=StrictUndefined
    )
    environment.filters["visible"] = visible
    return environment


def page(template: str, status: int = 200, **values: Any) -> HTMLResponse:
    return HTMLResponse(_environment().get_template(template).render(values), status)


async def plotly(request: Any) -> FileResponse:
    """From the installed plotly package: nothing is loaded from the network."""
    script = Path(str(resources.files("plotly") / "package_data" / "plotly.min.js"))
    return FileResponse(script, media_type="text/javascript", headers={"Cache-Control": "private, max-age=86400"})


def static_routes() -> list[Route | Mount]:
    folder = str(resources.files("vigneron") / "web" / "static")
    return [Route("/static/plotly.js", plotly), Mount("/static", StaticFiles(directory=folder))]
