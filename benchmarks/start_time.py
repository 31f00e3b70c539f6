"""Time from the start of a process to the end of its first step, with cold and with warm caches of compiled code.

python -m benchmarks.start_time [WORK] [--limit S] [--resume FILE] [--profile FILE]

Two processes, one after the other, with the same empty folders as caches: the first fills what the second finds. The
model's files are in the operating system's cache for both. A run starts as in `ours`: compiled, lengths forced.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext
from cProfile import Profile
from pathlib import Path
from typing import Any

from benchmarks.processes import start
from benchmarks.records import Records
from benchmarks.work import WORKS, Work

CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
"""Where compiled code is kept."""
STARTS, PROFILED = ("cold", "warm"), "profiled"
"""Caches of the two processes, and the name of one more, which is not measured."""


class Finished(Exception):
    """The first step has ended."""


class FirstStep:
    """A view of a run that ends it after its first step."""

    def notice(self, text: str) -> None: ...

    def step(self, run: Any, *given: Any) -> None:
        raise Finished


def measure(work: Work, began: float, profile: Path | None = None) -> dict[str, float]:
    """Seconds since `began` (of the clock `time.time`) until imports, set-up and the first step had ended. `profile`:
    a file for what Python's profiler sees after the imports; it takes time itself."""
    from benchmarks.ours import started
    from vigneron.training import loop

    marks = {"imported": time.time() - began}
    profiler = Profile() if profile is not None else nullcontext()
    with profiler, started(work) as run:
        marks["set up"] = time.time() - began
        try:
            loop.train(run, FirstStep())
        except Finished:
            marks["first step"] = time.time() - began
    if isinstance(profiler, Profile):
        profiler.dump_stats(str(profile))
    return marks


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", nargs="?", choices=WORKS, default="gpu-1.5b-32x8x256")
    parser.add_argument("--limit", type=float, default=600.0, help="time limit of each process in seconds")
    parser.add_argument("--resume", type=Path, help="file of results: append to it, and leave out what it has")
    parser.add_argument("--profile", type=Path, help="file for a profile of one more start, with warm caches")
    parser.add_argument("--began", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--of", choices=WORKS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.began is not None:
        given.out.write_text(json.dumps(measure(WORKS[given.of], given.began, given.profile)))
        return 0
    return run_both(given.work, Records(given.resume), given.limit, given.profile)


def run_both(work: str, records: Records, limit_s: float, profile: Path | None = None) -> int:
    # The second needs what the first leaves.
    if profile is not None or not all(records.get("start", work, caches) for caches in STARTS):
        why = _measure_both(work, records, limit_s, profile)
        if why is not None:
            print(f"FAILED start{why}")
            return 1
    for caches, marks in records.of("start", work):
        print(f"{work}, {caches} caches: " + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in marks.items()))
    for name, seconds in start_ratios(work, records):
        print(f"ratio {name} {seconds:.2f}")
    return 0


def _measure_both(work: str, records: Records, limit_s: float, profile: Path | None) -> str | None:
    """Why it failed, if it did."""
    with tempfile.TemporaryDirectory() as place:
        if (why := start("models", Path(place), model=WORKS[work].model).failure(limit_s)) is not None:
            return f": the model cannot be made: {why}"
        for name in CACHES:
            os.environ[name] = str(Path(place) / name)
        for caches in (*STARTS, *([PROFILED] if profile is not None else [])):
            out = Path(place) / f"{caches}.json"
            more = {"profile": profile.resolve()} if profile is not None and caches == PROFILED else {}
            why = start("start_time", Path(place), began=time.time(), of=work, out=out, **more).failure(limit_s)
            if why is not None:
                return f", {caches} caches: {why}"
            if caches in STARTS:
                records.add("start", work, caches, json.loads(out.read_text()))
    return None


def start_ratios(work: str, records: Records) -> Iterator[tuple[str, float]]:
    """Seconds to the end of the first step, named as ratios are."""
    yield from ((f"{work}/start-{caches}-s", marks["first step"]) for caches, marks in records.of("start", work))


if __name__ == "__main__":
    sys.exit(main())
