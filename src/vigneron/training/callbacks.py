"""Views of a run, called by the training loop: the terminal, a user's function, or none."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from vigneron.batch import Batch
from vigneron.config import Config
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.notices import Notice
from vigneron.training.method import Metrics


class RunInfo(Protocol):
    """What a view may read of its run. `step` is the number of finished steps."""

    config: Config
    step: int

    @property
    def folder(self) -> RunFolder: ...


class View(Protocol):
    """Called by the loop. Three optional methods: `warning(text)` for warnings (default: `notice`), `phase(text)` for
    the current phase of the run (None between phases), and `evaluation(run, metrics)` for the held-out metrics before
    the first step."""

    def notice(self, text: str) -> None: ...
    def step(self, run: RunInfo, metrics: Metrics, batch: Batch, seconds: float) -> None: ...


class Silent:
    def notice(self, text: str) -> None: ...
    def step(self, run: RunInfo, metrics: Metrics, batch: Batch, seconds: float) -> None: ...


@dataclass(frozen=True)
class Progress:
    """What a view function gets after every step: `vigneron.train("demo", view=lambda now: print(now.step))`.

    An exception from the function stops the run without saving.
    """

    folder: Path
    step: int
    steps: int
    metrics: Metrics
    seconds: float
    """Duration of the step."""
    notices: tuple[str, ...] = ()
    """Notices and warnings since the previous step."""

    @property
    def share(self) -> float:
        return self.step / self.steps


@dataclass
class FunctionView:
    """A view that calls a function after every step."""

    function: Callable[[Progress], object]
    _notices: list[str] = field(default_factory=list)

    def notice(self, text: str) -> None:
        self._notices.append(text)

    def step(self, run: RunInfo, metrics: Metrics, batch: Batch, seconds: float) -> None:
        notices, self._notices = tuple(self._notices), []
        self.function(Progress(run.folder.path, run.step, run.config.steps, dict(metrics), seconds, notices))


AnyView = View | Callable[[Progress], object] | None
"""The type of `view` in `vigneron.train`."""


def as_view(view: AnyView) -> View:
    if view is None:
        return Silent()
    if hasattr(view, "notice") and hasattr(view, "step"):
        return view
    if not callable(view):
        raise TypeError(
            "view: expected a function that takes a vigneron.Progress, or an object with `notice` and `step`"
        )
    return FunctionView(view)


def show_evaluation(view: View, run: RunInfo, metrics: Metrics) -> None:
    if (show := getattr(view, "evaluation", None)) is not None:
        show(run, metrics)


def tell(view: View, notice: Notice) -> None:
    show = getattr(view, "warning", view.notice) if notice.kind == "warning" else view.notice
    show(notice.text)
