"""`vigneron view`: pages over runs, their curves and their samples, read from the runs' folders."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse
from starlette.routing import Route

from vigneron.errors import UserError
from vigneron.run_store.curves import curves_of
from vigneron.run_store.headline_metrics import headline_keys, headline_values
from vigneron.run_store.metric_table import in_order, metric
from vigneron.run_store.notices import Notice
from vigneron.run_store.outcome import outcome_json, stored_outcome
from vigneron.run_store.outcome_text import best_text, next_steps, outcome_cell, outcome_text
from vigneron.run_store.rubric_samples import KINDS
from vigneron.run_store.sample_search import SORTS, WHICH, SampleQuery, SampleSearch
from vigneron.run_store.sample_turns import EXTRAS, turns_of_sample
from vigneron.run_store.samples import Kind, Sample
from vigneron.run_store.status import RunStatus, saved_checkpoints
from vigneron.web.answers import choice, groups, items_of_run, json_endpoint, number, whole
from vigneron.web.chat import Chats, Message
from vigneron.web.runs import NoSuchRun, Runs, differences, read_config, written_config
from vigneron.web.serve import page, static_routes

MAX_RUNS = 12
"""Runs in one plot: more cannot be distinguished."""
MAX_METRICS = 100
PAGE_SIZE = 64
"""A multiple of most group sizes: a group is seldom cut in two."""


def view_app(places: Sequence[Path], *, chat: bool = False) -> Starlette:
    """`places` are folders of runs, or runs. `chat`: load models of runs, with their own code, to chat with them."""
    viewer = _Viewer(Runs(places), chat=chat)
    pages = {"/": "view_runs.html", "/curves": "view_curves.html", "/samples": "view_samples.html"}
    pages["/history"] = "view_history.html"
    pages |= {"/chat": "view_chat.html"} if chat else {}
    data = {
        "runs": viewer.runs,
        "names": viewer.names,
        "curves": viewer.curves,
        "notices": viewer.notices,
        "configs": viewer.configs,
        "items": viewer.items,
        "samples": viewer.samples,
        "tokens": viewer.tokens,
        "history": viewer.history,
        "checkpoints": viewer.checkpoints,
    }
    return Starlette(
        routes=[
            *(Route(path, viewer.html_page(template)) for path, template in pages.items()),
            *(Route(f"/data/{name}", json_endpoint(answer)) for name, answer in data.items()),
            *([Route("/chat/reply", viewer.reply, methods=["POST"])] if chat else []),
            *static_routes(),
        ],
        exception_handlers={404: _not_found},
    )


class _Viewer:
    def __init__(self, runs: Runs, *, chat: bool = False) -> None:
        self._runs = runs
        self._chats = Chats(self._trains) if chat else None

    def _trains(self) -> bool:
        """Whether one of the runs is being trained."""
        return any(self._runs.status(path).alive for path in self._runs.folders().values())

    def html_page(self, template: str) -> Any:
        """The page is the same for all runs; its script fetches the data that its address names."""

        def endpoint(request: Request) -> HTMLResponse:
            try:
                names = list(self._requested(request)) if template != "view_runs.html" else []
            except UserError as error:
                return page("message.html", 404, message=str(error))
            return page(template, runs=names, chat=self._chats is not None)

        return endpoint

    def _requested(self, request: Request, limit: int = MAX_RUNS) -> dict[str, Path]:
        """The runs that a request names, each once."""
        names = list(dict.fromkeys(request.query_params.getlist("run")))
        if not names:
            raise UserError("the request names no run")
        if len(names) > limit:
            raise UserError(f"{len(names)} runs are too many for one page: at most {limit}")
        folders = self._runs.folders()
        for name in names:
            if name not in folders:
                raise NoSuchRun(name)
        return {name: folders[name] for name in names}

    def _one(self, request: Request) -> Path:
        return next(iter(self._requested(request, limit=1).values()))

    def runs(self, request: Request) -> Any:
        """All runs, or those that are named: running ones first, then the newest."""
        named = "run" in request.query_params
        runs = self._requested(request) if named else self._runs.folders()
        rows = [
            _row(name, self._runs.status(path), self._runs.notices(path), metrics=12 if named else 2)
            for name, path in runs.items()
        ]
        rows.sort(key=lambda row: (not row["alive"], -(row["changed"] or row["began"] or 0.0)))
        return {"runs": rows}

    def names(self, request: Request) -> Any:
        """All metrics of the runs in groups, and what they mean."""
        names: dict[str, None] = {}
        first: dict[str, None] = {}
        notes = []
        for path in self._requested(request).values():
            curves, note = curves_of(path)
            notes += [note] if note else []
            if curves is not None:
                names |= dict.fromkeys(curves.names())
                first |= dict.fromkeys(headline_keys(self._runs.status(path).config))
                curves.close()
        meanings = {name: metric(name).meaning for name in names}
        return {"groups": groups(names, in_order(first)), "meanings": meanings, "notes": notes}

    def curves(self, request: Request) -> Any:
        wanted = list(dict.fromkeys(request.query_params.getlist("name")))[:MAX_METRICS]
        first, last = number(request, "from"), number(request, "to")
        answer: dict[str, Any] = {}
        for name, path in self._requested(request).items():
            curves, _ = curves_of(path)
            if curves is None:
                answer[name] = {}
                continue
            try:
                answer[name] = curves.read(wanted, first or 0, last)
            finally:
                curves.close()
        return {"runs": answer}

    def notices(self, request: Request) -> Any:
        """Notes and warnings with their steps."""
        return {"runs": {name: self._runs.notices(path) for name, path in self._requested(request).items()}}

    def configs(self, request: Request) -> Any:
        runs = self._requested(request)
        configs = {name: read_config(path) for name, path in runs.items()}
        return {
            "runs": list(runs),
            "differences": differences(configs) if len(runs) > 1 else [],
            "texts": [written_config(path) for path in runs.values()],
        }

    def items(self, request: Request) -> Any:
        return {"items": items_of_run(self._one(request))}

    def samples(self, request: Request) -> Any:
        folder, kind = self._one(request), choice(request, "kind", tuple(KINDS))
        if not (folder / "samples.sqlite").is_file():
            return {"kinds": [], "steps": None, "found": None}
        query: dict[str, Any] = {
            "kind": kind,
            "which": choice(request, "which", tuple(WHICH)),
            "sort": choice(request, "sort", tuple(SORTS)),
            "search": request.query_params.get("search", "")[:200],
            "category": request.query_params.get("category", ""),
            "origin": request.query_params.get("origin", ""),
            "reward_from": number(request, "reward_from"),
            "reward_to": number(request, "reward_to"),
            "offset": max(0, whole(request, "offset") or 0),
            "limit": PAGE_SIZE,
        }
        with SampleSearch(folder) as store:
            kinds = store.kinds()
            steps = store.steps_around(kind, whole(request, "step"))
            results = None if steps.at is None else store.find(SampleQuery(steps.at, **query))
            tokens, near = ([], None) if steps.at is None else store.with_tokens(steps.at, kind)
        found = None if results is None else vars(results) | {"samples": [_shown(sample) for sample in results.samples]}
        return {
            "kinds": kinds,
            "steps": steps,
            "found": found,
            "page": PAGE_SIZE,
            "tokens": tokens,
            "tokens_near": near,
        }

    def tokens(self, request: Request) -> Any:
        """Values of each token of one sample."""
        with self._store(request) as (store, kind, step, sample):
            tokens = store.tokens(step, kind, sample)
        if tokens is None:
            raise UserError(f"no token values were kept of sample {sample} in step {step} ({kind})")
        return tokens

    def checkpoints(self, request: Request) -> Any:
        return {"steps": [checkpoint.step for checkpoint in saved_checkpoints(self._one(request))]}

    async def reply(self, request: Request) -> JSONResponse:
        """The next turn of a chat."""
        body = await request.body()

        def answer(request: Request) -> Any:
            assert self._chats is not None
            message = Message.of(body)
            return {"reply": self._chats.reply(self._runs.folder(message.run), message)}

        return await run_in_threadpool(json_endpoint(answer), request)

    def history(self, request: Request) -> Any:
        """The samples of one sample's prompt in all steps."""
        with self._store(request) as (store, kind, step, sample):
            one = store.one(step, kind, sample)
            if one is None:
                raise UserError(f"there is no sample {sample} in step {step} ({kind})")
            return {"prompt": one.prompt, "answer": one.answer, "samples": _history(store, one.prompt, kind)}

    @contextmanager
    def _store(self, request: Request) -> Iterator[tuple[SampleSearch, Kind, int, int]]:
        """The samples of a run, and the one that a request names."""
        folder, kind = self._one(request), choice(request, "kind", tuple(KINDS))
        step, sample = whole(request, "step"), whole(request, "sample")
        if step is None or sample is None or not (folder / "samples.sqlite").is_file():
            raise UserError("the request must name a step and a sample of it")
        with SampleSearch(folder) as store:
            yield store, kind, step, sample


def _history(store: SampleSearch, prompt: str, kind: Kind) -> list[dict[str, Any]]:
    columns = ("step", "sample", "completion", "conversation", "reward", "advantage", "correct", "truncated")
    return [{name: shown[name] for name in columns} for shown in map(_shown, store.history(prompt, kind))]


def _shown(sample: Sample) -> dict[str, Any]:
    """The sample, with its turns if it is a conversation."""
    turns = turns_of_sample(sample)
    extras = {name: value for name, value in sample.extras.items() if turns is None or name not in EXTRAS}
    return {**vars(sample), "extras": extras, "conversation": turns}


def _row(name: str, status: RunStatus, notices: Sequence[Notice], metrics: int) -> dict[str, Any]:
    warnings = [notice.text for notice in notices if notice.kind == "warning"]
    values = headline_values(status.config, status.metrics, limit=metrics)
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
        "outcome": _outcome(status),
        "warnings": len(warnings),
        "warning": warnings[-1] if warnings else None,
        "metrics": [{"label": one.label, "value": value, "meaning": one.meaning} for one, value in values],
    }


def _outcome(status: RunStatus) -> dict[str, Any] | None:
    """The verdict on the held-out rows, as the run wrote it at its end; None before, and of older runs."""
    outcome = stored_outcome(status.outcome)
    if outcome is None:
        return None
    steps = next_steps(outcome, status) if status.state == "finished" else []
    return {
        **outcome_json(outcome),
        "text": outcome_text(outcome),
        "label": outcome.label,
        "cell": outcome_cell(outcome),
        "best_text": best_text(outcome),
        "next": [f"{name}: {text}" for name, text in steps],
    }


async def _not_found(request: Request, error: Exception) -> HTMLResponse:
    return page("message.html", 404, message="this page does not exist")
