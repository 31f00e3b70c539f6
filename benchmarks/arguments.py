"""Command-line arguments of every contestant, and the work they select."""

import argparse
import math
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.device_memory import watch_device
from benchmarks.work import WORKS, Work


@dataclass(frozen=True)
class Arguments:
    work: Work
    contestant: str
    out: Path
    frozen: Path | None
    """For the parity check: a frozen batch to use instead of training."""


def contestant_arguments(about: str | None) -> Arguments:
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--work", required=True, choices=WORKS)
    parser.add_argument("--contestant", required=True)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--warmups", type=int)
    parser.add_argument("--patience", type=float)
    parser.add_argument("--frozen", type=Path)
    given = parser.parse_args()
    watch_device()
    work = with_pace(WORKS[given.work].at_pace_of(given.contestant), given.steps, given.patience, given.warmups)
    return Arguments(work, given.contestant, given.out, given.frozen)


def make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SystemExit(f"cannot create the folder '{path}': {error.strerror}") from error


def with_pace(work: Work, steps: int | None, patience_s: float | None, warmups: int | None = None) -> Work:
    """The work with another number of steps or another time limit. A given number of steps has no time limit."""
    if steps is not None:
        work = replace(work, steps=steps, patience_s=math.inf)
    if warmups is not None:
        work = replace(work, warmups=warmups)
    return work if patience_s is None else replace(work, patience_s=patience_s)
