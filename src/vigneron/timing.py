"""Time of a step by named, nested phases. Costs nothing unless timings are recorded or phases are reported."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch

WHOLE = "whole step"


@dataclass
class Stopwatch:
    """Seconds by phase (`rollout/decode`) for each step."""

    seconds: dict[str, float] = field(default_factory=dict)
    """Of the current step."""
    steps: list[dict[str, float]] = field(default_factory=list)
    began: float = field(default_factory=time.perf_counter)
    path: list[str] = field(default_factory=list)


@dataclass
class PhaseReporter:
    """Calls `report` with the name of the outermost phase when it begins, and with None when it ends."""

    report: Callable[[str | None], None]
    depth: int = 0


_stopwatch: ContextVar[Stopwatch | None] = ContextVar("stopwatch", default=None)
_reporter: ContextVar[PhaseReporter | None] = ContextVar("phase_reporter", default=None)


@contextmanager
def phase(name: str) -> Iterator[None]:
    """A named part of a step. While timings are recorded, synchronizes with the device before and after."""
    reporter = _reporter.get()
    if reporter is None:
        with _timed(name):
            yield
        return
    reporter.depth += 1
    if reporter.depth == 1:
        reporter.report(name)
    try:
        with _timed(name):
            yield
    finally:
        reporter.depth -= 1
        if reporter.depth == 0:
            reporter.report(None)


@contextmanager
def reporting_phases(report: Callable[[str | None], None] | None) -> Iterator[None]:
    """Call `report` with the current phase within this block. It must be fast, and is called from one thread."""
    token = _reporter.set(None if report is None else PhaseReporter(report))
    try:
        yield
    finally:
        _reporter.reset(token)


def progress(name: str, done: int, of: int) -> None:
    """Report progress within the outermost phase."""
    reporter = _reporter.get()
    if reporter is not None:
        reporter.report(f"{name} {done}/{of}")


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
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    elif torch.backends.mps.is_available():
        torch.mps.synchronize()
