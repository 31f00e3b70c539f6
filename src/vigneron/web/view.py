"""`vigneron view`: runs, their curves and their samples, from the runs' folders alone."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Route

from vigneron.errors import UserError
from vigneron.run_store.rubric_samples import KINDS
from vigneron.run_store.curves import curves_of
from vigneron.run_store.headline_metrics import headline
from vigneron.run_store.sample_search import SORTS, WHICH, Asked, SampleSearch
from vigneron.run_store.samples import Kind
from vigneron.run_store.status import RunStatus
from vigneron.web.answers import answering, choice, groups, number, whole
from vigneron.web.items import items_of_run
from vigneron.web.pages import page, static_routes
from vigneron.web.runs import NoSuchRun, Runs, differences, read_config, written_config

MOST_RUNS = 12
"""More of them in one figure nobody can tell apart."""
MOST_NAMES = 100
PAGE = 50


def view_app(places: Sequence[Path]) -> Starlette:
    """Pages over the runs in these folders, or over these runs."""
    viewer = _Viewer(Runs(places))
    pages = {"/": "view_runs.html", "/curves": "view_curves.html", "/samples": "view_samples.html"}
    pages["/history"] = "view_history.html"
    data = {
        "runs": viewer.runs,
        "names": viewer.names,
        "curves": viewer.curves,
        "configs": viewer.configs,
        "items": viewer.items,
        "samples": viewer.samples,
        "history": viewer.history,
    }
    return Starlette(
        routes=[
            *(Route(path, viewer.shown(template)) for path, template in pages.items()),
            *(Route(f"/data/{name}", answering(answer)) for name, answer in data.items()),
            *static_routes(),
        ],
        exception_handlers={404: _not_found},
    )


class _Viewer:
    def __init__(self, runs: Runs) -> None:
        self._runs = runs

    def shown(self, template: str) -> Any:
        """The page itself is the same for all; what it shows its script asks for, by the page's own address."""

        def endpoint(request: Request) -> HTMLResponse:
            try:
                names = list(self._asked(request)) if template != "view_runs.html" else []
            except UserError as error:
                return page("message.html", 404, message=str(error))
            return page(template, runs=names)

        return endpoint

    def _asked(self, request: Request, most: int = MOST_RUNS) -> dict[str, Path]:
        """The runs that a request names; the same may be named twice."""
        names = list(dict.fromkeys(request.query_params.getlist("run")))
        if not names:
            raise UserError("no run is named")
        if len(names) > most:
            raise UserError(f"{len(names)} runs at once are too many: at most {most}")
        there = self._runs.folders()
        for name in names:
            if name not in there:
                raise NoSuchRun(name)
        return {name: there[name] for name in names}

    def _one(self, request: Request) -> Path:
        return next(iter(self._asked(request, most=1).values()))

    def runs(self, request: Request) -> Any:
        """All of them, or those that are named."""
        found = self._asked(request) if "run" in request.query_params else self._runs.folders()
        rows = [_row(name, self._runs.status(path)) for name, path in found.items()]
        # What is alive first, then the newest.
        rows.sort(key=lambda row: (not row["alive"], -(row["changed"] or row["began"] or 0.0)))
        return {"runs": rows}

    def names(self, request: Request) -> Any:
        """All figures of all the runs, in groups."""
        names: dict[str, None] = {}
        notes = []
        for path in self._asked(request).values():
            curves, note = curves_of(path)
            notes += [note] if note else []
            if curves is not None:
                names |= dict.fromkeys(curves.names())
                curves.close()
        return {"groups": groups(names), "notes": notes}

    def curves(self, request: Request) -> Any:
        wanted = list(dict.fromkeys(request.query_params.getlist("name")))[:MOST_NAMES]
        first, last = number(request, "from"), number(request, "to")
        answer: dict[str, Any] = {}
        for name, path in self._asked(request).items():
            curves, _ = curves_of(path)
            if curves is None:
                answer[name] = {}
                continue
            try:
                answer[name] = curves.read(wanted, first or 0, last)
            finally:
                curves.close()
        return {"runs": answer}

    def configs(self, request: Request) -> Any:
        asked = self._asked(request)
        configs = {name: read_config(path) for name, path in asked.items()}
        return {
            "runs": list(asked),
            "differences": differences(configs) if len(asked) > 1 else [],
            "texts": [written_config(path) for path in asked.values()],
        }

    def items(self, request: Request) -> Any:
        return {"items": items_of_run(self._one(request))}

    def samples(self, request: Request) -> Any:
        folder, kind = self._one(request), choice(request, "kind", tuple(KINDS))
        if not (folder / "samples.sqlite").is_file():
            return {"kinds": [], "steps": None, "found": None}
        asked: dict[str, Any] = {
            "kind": kind,
            "which": choice(request, "which", tuple(WHICH)),
            "sort": choice(request, "sort", tuple(SORTS)),
            "search": request.query_params.get("search", "")[:200],
            "category": request.query_params.get("category", ""),
            "offset": max(0, whole(request, "offset") or 0),
            "limit": PAGE,
        }
        with SampleSearch(folder) as store:
            kinds = store.kinds()
            steps = store.steps_around(kind, whole(request, "step"))
            found = None if steps.at is None else store.find(Asked(steps.at, **asked))
        return {"kinds": kinds, "steps": steps, "found": found, "page": PAGE}

    def history(self, request: Request) -> Any:
        """Of the prompt of one sample, in all steps."""
        folder, kind = self._one(request), choice(request, "kind", tuple(KINDS))
        step, sample = whole(request, "step"), whole(request, "sample")
        if step is None or sample is None or not (folder / "samples.sqlite").is_file():
            raise UserError("a sample is named by its step and its number")
        with SampleSearch(folder) as store:
            one = store.one(step, kind, sample)
            if one is None:
                raise UserError(f"there is no sample {sample} of step {step} ({kind})")
            return {"prompt": one.prompt, "answer": one.answer, "samples": _history(store, one.prompt, kind)}


def _history(store: SampleSearch, prompt: str, kind: Kind) -> list[dict[str, Any]]:
    columns = ("step", "sample", "completion", "reward", "advantage", "correct", "truncated")
    return [{name: getattr(sample, name) for name in columns} for sample in store.history(prompt, kind)]


def _row(name: str, status: RunStatus) -> dict[str, Any]:
    figures = headline(status.config, status.figures, most=2)
    return {
        "name": name,
        "state": status.state,
        "alive": status.alive,
        "recipe": status.recipe,
        "method": status.method,
        "step": status.step,
        "steps": status.steps,
        "began": status.began,
        "ended": status.ended,
        "changed": status.changed,
        "error": status.error,
        "figures": figures,
    }


async def _not_found(request: Request, error: Exception) -> HTMLResponse:
    return page("message.html", 404, message="there is no such page")
