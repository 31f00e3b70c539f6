"""Who watches a run: the terminal, a function of a script's, or nobody."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from vigneron.batch import Batch
from vigneron.config import Config
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.notices import Notice
from vigneron.training.method import Metrics


class RunInfo(Protocol):
    """What a view may read of the run it watches. `step` counts the steps that are done."""

    config: Config
    step: int

    @property
    def folder(self) -> RunFolder: ...


class View(Protocol):
    """Called by the loop. Two more are called where a view has them: `warning(text)`, instead of `notice`, for what is
    going wrong, and `phase(text)`, for what the run is doing now (None: nothing that has a name)."""

    def notice(self, text: str) -> None: ...
    def step(self, run: RunInfo, metrics: Metrics, batch: Batch, seconds: float) -> None: ...


class Silent:
    def notice(self, text: str) -> None: ...
    def step(self, run: RunInfo, metrics: Metrics, batch: Batch, seconds: float) -> None: ...


@dataclass(frozen=True)
class Progress:
    """What a function is told after every step: `vigneron.train("demo", view=lambda now: print(now.step))`.

    What it raises stops the run, as Ctrl-C would, but without saving.
    """

    folder: Path
    step: int
    steps: int
    metrics: Metrics
    seconds: float
    """That the step took."""
    said: tuple[str, ...] = ()
    """Notes and warnings since the step before."""

    @property
    def share(self) -> float:
        return self.step / self.steps


@dataclass
class Telling:
    """A function as a view."""

    tell: Callable[[Progress], object]
    _said: list[str] = field(default_factory=list)

    def notice(self, text: str) -> None:
        self._said.append(text)

    def step(self, run: RunInfo, metrics: Metrics, batch: Batch, seconds: float) -> None:
        said, self._said = tuple(self._said), []
        self.tell(Progress(run.folder.path, run.step, run.config.steps, dict(metrics), seconds, said))


AnyView = View | Callable[[Progress], object] | None
"""What `vigneron.train` takes."""


def as_view(view: AnyView) -> View:
    if view is None:
        return Silent()
    if hasattr(view, "notice") and hasattr(view, "step"):
        return view
    if not callable(view):
        raise TypeError("view: a function that takes a vigneron.Progress, or an object with `notice` and `step`")
    return Telling(view)


def tell(view: View, notice: Notice) -> None:
    any_view: Any = view
    (getattr(any_view, "warning", any_view.notice) if notice.kind == "warning" else any_view.notice)(notice.text)
