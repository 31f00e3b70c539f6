"""Time by named, nested phases: of the start-up of a run, of its steps, and what it does at this moment.

Steps are timed only within `recording_timings`; the phases of the start-up are always timed and reported.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import Lock

WHOLE = "whole step"
OTHER = "other"
TOTAL = "total"


@dataclass
class Stopwatch:
    """Seconds by phase (`rollout/decode`) for each step."""

    seconds: dict[str, float] = field(default_factory=dict)
    """Of the current step."""
    steps: list[dict[str, float]] = field(default_factory=list)
    began: float = field(default_factory=time.perf_counter)
    path: list[str] = field(default_factory=list)


@dataclass(eq=False)
class Shown:
    """A phase that is reported."""

    name: str
    text: str


class PhaseReporter:
    """Calls `report` with the current phase whenever it changes, and with None between phases. Adds up the seconds of
    each phase, without those of the reported phases inside it."""

    def __init__(self, report: Callable[[str | None], None] | None) -> None:
        self.report = report
        self.depth = 0
        self.started = False
        """Whether the first step is done, after which phases are no longer timed."""
        self.began = self._since = time.perf_counter()
        self.seconds: dict[str, float] = {}
        self._open: list[Shown] = []
        self._lock = Lock()

    def begin(self, name: str, text: str) -> Shown:
        shown = Shown(name, text)
        with self._lock:
            self._charge()
            self._open.append(shown)
        self.tell(text)
        return shown

    def end(self, shown: Shown) -> None:
        with self._lock:
            self._charge()
            self._open.remove(shown)
            current = self._open[-1].text if self._open else None
        self.tell(current)

    def tell(self, text: str | None) -> None:
        if self.report is not None:
            self.report(text)

    def _charge(self) -> None:
        if self.started:
            return
        now = time.perf_counter()
        name = self._open[-1].name if self._open else OTHER
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._since
        self._since = now

    def take_seconds(self) -> dict[str, float]:
        with self._lock:
            self._charge()
            self.started = True
        rest = self.seconds.pop(OTHER, 0.0)
        return {**self.seconds, OTHER: rest, TOTAL: self._since - self.began}


_stopwatch: ContextVar[Stopwatch | None] = ContextVar("stopwatch", default=None)
_reporter: ContextVar[PhaseReporter | None] = ContextVar("phase_reporter", default=None)


@contextmanager
def phase(name: str, detail: str = "") -> Iterator[None]:
    """A named part of the start-up or of a step; the outermost one is reported, with `detail`.

    While timings are recorded, synchronizes with the device before and after.
    """
    reporter = _reporter.get()
    if reporter is None:
        with _timed(name):
            yield
        return
    reporter.depth += 1
    shown = reporter.begin(name, f"{name} ({detail})" if detail else name) if reporter.depth == 1 else None
    try:
        with _timed(name):
            yield
    finally:
        reporter.depth -= 1
        if shown is not None:
            reporter.end(shown)


@contextmanager
def reporting_phases(report: Callable[[str | None], None] | None) -> Iterator[None]:
    """Call `report` with the current phase within this block, and time the start-up. It must be fast. Within a block
    for the same `report`, continues that one."""
    outer = _reporter.get()
    if outer is not None and report is not None and outer.report == report:
        yield
        return
    token = _reporter.set(PhaseReporter(report))
    try:
        yield
    finally:
        _reporter.reset(token)


@contextmanager
def inner_phase(name: str) -> Iterator[None]:
    """A phase that is reported also inside another one, and counted by itself. Steps are not timed by it."""
    begin, end = phase_hooks(name)
    begin()
    try:
        yield
    finally:
        end()


def phase_hooks(name: str) -> tuple[Callable[..., None], Callable[..., None]]:
    """Two functions that begin and end an `inner_phase`, for libraries that call back: from any thread, with any
    arguments."""
    reporter = _reporter.get()
    opened: list[Shown] = []

    def begin(*_: object) -> None:
        if reporter is not None:
            opened.append(reporter.begin(name, name))

    def end(*_: object) -> None:
        if reporter is not None and opened:
            reporter.end(opened.pop())

    return begin, end


def take_start() -> dict[str, float] | None:
    """Seconds of the phases since the process began with this run, once, when its first step is done; then None."""
    reporter = _reporter.get()
    if reporter is None or reporter.started:
        return None
    return reporter.take_seconds()


def progress(name: str, done: int, of: int) -> None:
    """Report progress within the outermost phase."""
    reporter = _reporter.get()
    if reporter is not None:
        reporter.tell(f"{name} {done}/{of}")


@contextmanager
def _timed(name: str) -> Iterator[None]:
    watch = _stopwatch.get()
    if watch is None:
        yield
        return
    watch.path.append(name)
    path = "/".join(watch.path)
    _synchronize()
    began = time.perf_counter()
    try:
        yield
    finally:
        _synchronize()
        watch.seconds[path] = watch.seconds.get(path, 0.0) + time.perf_counter() - began
        watch.path.pop()


def start_timing() -> None:
    """Discard the time before the first step."""
    watch = _stopwatch.get()
    if watch is not None:
        watch.seconds, watch.began = {}, time.perf_counter()


def end_timed_step() -> None:
    """Close the timings of a step and begin those of the next."""
    watch = _stopwatch.get()
    if watch is not None:
        now = time.perf_counter()
        watch.steps.append({**watch.seconds, WHOLE: now - watch.began})
        watch.seconds, watch.began = {}, now


@contextmanager
def recording_timings() -> Iterator[Stopwatch]:
    """Time the phases within this block. Slightly slower: the host waits for the device at each phase."""
    watch = Stopwatch()
    token = _stopwatch.set(watch)
    try:
        yield watch
    finally:
        _stopwatch.reset(token)


def _synchronize() -> None:
    import torch  # here: this module is imported before torch, whose import is a phase

    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    elif torch.backends.mps.is_available():
        torch.mps.synchronize()
