"""Where a step's time goes: named phases, one inside the other. Free unless somebody listens, or is told."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch

WHOLE = "whole step"


@dataclass
class Stopwatch:
    """Seconds by phase (`rollout/decode`), lap by lap."""

    seconds: dict[str, float] = field(default_factory=dict)
    """Of the lap under way."""
    laps: list[dict[str, float]] = field(default_factory=list)
    began: float = field(default_factory=time.perf_counter)
    path: list[str] = field(default_factory=list)


@dataclass
class Told:
    """Who is told of the outermost phase when it begins and ends (None)."""

    tell: Callable[[str | None], None]
    depth: int = 0


_listening: ContextVar[Stopwatch | None] = ContextVar("stopwatch", default=None)
_told: ContextVar[Told | None] = ContextVar("told", default=None)


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Waits for the device at both edges, if somebody listens: time lands where it is spent."""
    told = _told.get()
    if told is None:
        with _timed(name):
            yield
        return
    told.depth += 1
    if told.depth == 1:
        told.tell(name)
    try:
        with _timed(name):
            yield
    finally:
        told.depth -= 1
        if told.depth == 0:
            told.tell(None)


@contextmanager
def telling(tell: Callable[[str | None], None] | None) -> Iterator[None]:
    """Whoever is told hears what is being done now. It must be quick, and may be asked from one thread only."""
    token = _told.set(None if tell is None else Told(tell))
    try:
        yield
    finally:
        _told.reset(token)


def progress(name: str, done: int, of: int) -> None:
    """How far the outermost phase has come."""
    told = _told.get()
    if told is not None:
        told.tell(f"{name} {done}/{of}")


@contextmanager
def _timed(name: str) -> Iterator[None]:
    watch = _listening.get()
    if watch is None:
        yield
        return
    watch.path.append(name)
    path = "/".join(watch.path)
    _wait()
    began = time.perf_counter()
    try:
        yield
    finally:
        _wait()
        watch.seconds[path] = watch.seconds.get(path, 0.0) + time.perf_counter() - began
        watch.path.pop()


def first_lap() -> None:
    """The first step begins: what came before is not counted."""
    watch = _listening.get()
    if watch is not None:
        watch.seconds, watch.began = {}, time.perf_counter()


def next_lap() -> None:
    """A step is over: what follows is counted anew."""
    watch = _listening.get()
    if watch is not None:
        now = time.perf_counter()
        watch.laps.append({**watch.seconds, WHOLE: now - watch.began})
        watch.seconds, watch.began = {}, now


@contextmanager
def listening() -> Iterator[Stopwatch]:
    """Phases within are timed. Costs a little: the device cannot run ahead."""
    watch = Stopwatch()
    token = _listening.set(watch)
    try:
        yield watch
    finally:
        _listening.reset(token)


def _wait() -> None:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    elif torch.backends.mps.is_available():
        torch.mps.synchronize()
