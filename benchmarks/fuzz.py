"""Long fuzzing: `python -m benchmarks.fuzz`. Every case is determined by its kind and number, and can be run alone."""

import argparse
import json
import os
import resource
import shutil
import sys
import time
import warnings
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from tempfile import mkdtemp

from benchmarks.fuzzing.channel import channel_case
from benchmarks.fuzzing.folders import checkpoint_case, loaded, model_case, resume_case, run_case, runs
from benchmarks.fuzzing.guard import Finding, outcome_of, watched
from benchmarks.fuzzing.judge_replies import judge_reply_case
from benchmarks.fuzzing.kinds import Make, config_case, dataset_case, rubric_case, tokenizer
from benchmarks.fuzzing.run_folders import run_folder_case

KINDS: dict[str, Make] = {
    "config": config_case,
    "rubric": rubric_case,
    "dataset": dataset_case,
    "checkpoint": checkpoint_case,
    "run": run_case,
    "resume": resume_case,
    "model": model_case,
    "run_folder": run_folder_case,
    "judge_reply": judge_reply_case,
    "channel": channel_case,
}
SLOWER = {"resume": 10, "model": 10}
"""Kinds that load a model: a tenth of the cases."""
MEMORY = 4 * 2**30
"""Memory beyond that at the start; exceeding it raises MemoryError, which is a finding."""


@dataclass
class Tally:
    cases: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    """Equal findings and their number."""
    findings: list[str] = field(default_factory=list)
    """The first of each."""
    seconds: float = 0.0
    slowest_s: float = 0.0


@cache
def prepare(kind: str) -> None:
    """Create what the cases of a kind share, before the checks are active."""
    if kind == "dataset":
        tokenizer()
    elif kind == "run_folder":
        runs()
    elif kind in ("checkpoint", "run", "resume", "model"):
        for run in runs():
            loaded(run)


def fuzz(kind: str, number: int) -> str:
    """Run one case in its own folder; returns its outcome or raises a `Finding`."""
    place = Path(mkdtemp(prefix="vigneron-case-")).resolve()
    home = place / "home"
    home.mkdir()
    folder = place / "case"
    folder.mkdir()
    (place / "precious").write_text("mine", encoding="utf-8")  # the target of links that leave the folder
    before = sorted(str(path) for path in place.rglob("*"))
    here, before_case = os.getcwd(), dict(os.environ)
    prepare(kind)
    try:
        with watched(folder):
            case = KINDS[kind](Random(f"{kind} {number}"), folder)
        os.chdir(home)
        os.environ["HOME"] = str(home)
        os.environ["VIGNERON_CACHE"] = str(folder / "cache")  # of tokenizers that were tried
        outcome = outcome_of(case, folder)
        after = sorted(str(p) for p in place.rglob("*") if folder not in p.parents)
        if after != before or (place / "precious").read_text(encoding="utf-8") != "mine":
            raise Finding(f"changed something outside its folder: {sorted(set(after) ^ set(before))[:3]}")
        return outcome
    finally:
        os.chdir(here)
        os.environ.clear()
        os.environ.update(before_case)
        shutil.rmtree(place, ignore_errors=True)


def soak(kind: str, cases: int, first: int = 0, seconds: float | None = None) -> Tally:
    tally = Tally()
    began = time.monotonic()
    for number in range(first, first + cases):
        if seconds is not None and time.monotonic() - began > seconds:
            break
        at = time.monotonic()
        try:
            tally.outcomes[fuzz(kind, number)] += 1
        except Finding as finding:
            if finding.fault not in tally.faults:
                tally.findings.append(f"{kind} {number}: {finding}")
            tally.faults[finding.fault] += 1
        tally.slowest_s = max(tally.slowest_s, time.monotonic() - at)
        tally.cases += 1
    tally.seconds = time.monotonic() - began
    return tally


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz", description=__doc__)
    parser.add_argument(
        "--cases", type=int, default=10_000, help="cases of each kind; a tenth of them for kinds that load a model"
    )
    parser.add_argument("--seconds", type=float, help="time limit for each kind, in seconds")
    parser.add_argument("--kind", choices=KINDS, help="only this one")
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--out", type=Path, help="JSON file for the results")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    results = {}
    for kind in [given.kind] if given.kind else KINDS:
        fuzz_limits()
        cases = given.cases if given.kind else max(1, given.cases // SLOWER.get(kind, 1))
        tally = soak(kind, cases, given.first, given.seconds)
        results[kind] = vars(tally)
        found = f"{sum(tally.faults.values())} findings of {len(tally.faults)} faults"
        of = f"{tally.outcomes['worked']} worked, {tally.outcomes['refused']} refused, {found}"
        print(f"{kind}: {tally.cases} cases, {of}, {tally.seconds:.0f} s (slowest {tally.slowest_s:.1f} s)", flush=True)
        for finding in tally.findings:
            print(finding, flush=True)
    if given.out is not None:
        given.out.write_text(json.dumps(results, indent=1), encoding="utf-8")
    sys.exit(any(tally["findings"] for tally in results.values()))


def fuzz_limits() -> None:
    """Limit memory, so that excessive use raises MemoryError."""
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 0
    if pages:
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, resource.RLIM_INFINITY))


if __name__ == "__main__":
    main()
