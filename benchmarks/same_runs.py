"""The same trainings by two versions of the code, compared exactly: proof that a restructure changes nothing.

    python -m benchmarks.same_runs OLD NEW                    every case, some minutes
    python -m benchmarks.same_runs OLD NEW --only grpo sft    some of them (`--list` has the names)
    python -m benchmarks.same_runs OLD NEW --speed            seconds of GRPO steps instead, by turns

OLD and NEW are checkouts, or commits of this repository. Each case trains a tiny model once with each version's code,
in the same layout of folders, and compares metrics, samples and the last checkpoint without tolerance. Exit status 1:
something differs, or a case could not be run. Of the package only public entry points are used: `vigneron.train`,
`resume`, `load_run`, the command line, and the files of a run's folder.
"""

import argparse
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.equality.cases import Case, Stage, all_cases
from benchmarks.equality.compare import Comparison, Renames, compare_runs, difference_of, renamed
from benchmarks.equality.sides import Side, both_sides, ended

RENAMED_KEYS: dict[str, str] = {}
"""Dotted keys of recipes, old by new: `method.kl.against` and so on. Applied to NEW's recipes and overrides."""
RENAMED_METRICS: dict[str, str] = {}
"""Names in metrics.jsonl, old by new."""
RENAMED_SAMPLE_FIELDS: dict[str, str] = {}
RENAMED_TENSORS: dict[str, str] = {}
RENAMED_SCALARS: dict[str, str] = {}
"""Dotted names in a checkpoint's state/scalars.json, old by new."""

WORKER = Path(__file__).parent / "equality" / "worker.py"


def prepared(stage: Stage, side: Side) -> Stage:
    """A stage as the side runs it: its recipe in a file, keys by their names there."""
    if stage["do"] == "train":
        file = side.place / "recipes" / f"{stage['run']}.yaml"
        file.write_text(yaml.safe_dump(side.with_new_keys(stage["config"])), encoding="utf-8")
        return {**stage, "recipe": f"recipes/{file.name}"}
    if stage["do"] == "resume":
        split = [override.partition("=") for override in stage["overrides"]]
        return {**stage, "overrides": [f"{side.keys.get(key, key)}={value}" for key, _, value in split]}
    return stage


def run_workers(work: Mapping[Side, Sequence[tuple[str, Sequence[Stage]]]]) -> dict[Side, dict[str, Any]]:
    """Each side's stages, by case, in one process for a side; both sides at the same time."""
    processes = {side: _worker(side, stages) for side, stages in work.items() if stages}
    found: dict[Side, dict[str, Any]] = {side: {} for side in work}
    try:
        codes = {side: ended(process) for side, process in processes.items()}
    finally:
        for process in processes.values():
            process.kill()
    for side, code in codes.items():
        lines = (side.place / "results.jsonl").read_text(encoding="utf-8").splitlines()
        found[side] = {record["case"]: record for record in map(json.loads, lines)}
        if code:
            print(f"{side.name}'s worker ended with status {code}:\n{side.last_lines()}", file=sys.stderr)
    return found


def _worker(side: Side, cases: Sequence[tuple[str, Sequence[Stage]]]) -> "subprocess.Popen[bytes]":
    results = side.place / "results.jsonl"
    results.write_text("")
    listed = [{"name": name, "stages": [prepared(stage, side) for stage in stages]} for name, stages in cases]
    job = side.place / "job.json"
    job.write_text(json.dumps({"cases": listed, "results": str(results)}), encoding="utf-8")
    return side.started([str(WORKER), str(job)])


def run_processes(case: Case, side: Side) -> str | None:
    """A case by the command line; what went wrong, if something did."""
    for stage in (prepared(stage, side) for stage in case.stages):
        if stage["do"] == "train":
            what = ["train", stage["recipe"], "--name", stage["run"], "--runs", "runs"]
        else:
            what = ["resume", f"runs/{stage['run']}", *stage["overrides"]]
        code = ended(side.started(["-m", "vigneron", *what, *stage["arguments"]]))
        if code != stage["code"]:
            return f"{side.name}: `vigneron {' '.join(what)}` ended with {code}: {side.last_lines()}"
    return None


class Comparer:
    """Runs cases with both sides and compares what they come to."""

    def __init__(self, old: Side, new: Side) -> None:
        self._sides = old, new
        self._renames = Renames(RENAMED_METRICS, RENAMED_SAMPLE_FIELDS, RENAMED_TENSORS, RENAMED_SCALARS)

    def compare(self, cases: Sequence[Case]) -> Iterator[tuple[Case, Comparison]]:
        alone = [case for case in cases if not case.processes and not case.handed_over]
        handed = [case for case in cases if case.handed_over]
        yield from self._in_workers(alone, handed)
        yield from self._handed_over(handed)
        for case in cases:
            if case.processes:
                errors = [run_processes(case, side) for side in self._sides]
                yield case, self._compared(case, next((error for error in errors if error), None))

    def _in_workers(self, cases: Sequence[Case], handed: Sequence[Case]) -> Iterator[tuple[Case, Comparison]]:
        old, new = self._sides
        both = [(case.name, case.stages) for case in cases]
        found = run_workers({old: both + [(case.name, case.stages[:1]) for case in handed], new: both})
        for case in cases:
            yield case, self._compared(case, *self._errors(case, found))

    def _handed_over(self, cases: Sequence[Case]) -> Iterator[tuple[Case, Comparison]]:
        """NEW goes on with what OLD has written, and ends where OLD ends."""
        old, new = self._sides
        for run in (run for case in cases for run in case.runs):
            if (old.place / "runs" / run).is_dir():
                shutil.copytree(old.place / "runs" / run, new.place / "runs" / run)
        rest = [(case.name, case.stages[1:]) for case in cases]
        found = run_workers({old: rest, new: rest})
        for case in cases:
            yield case, self._compared(case, *self._errors(case, found))

    def _errors(self, case: Case, found: Mapping[Side, dict[str, Any]]) -> Iterator[str | None]:
        old, new = self._sides
        for side in self._sides:
            record = found[side].get(case.name)
            error = "did not run" if record is None else record["error"]
            yield f"{side.name}: {error}" if error else None
        if case.name in found[old] and case.name in found[new]:
            evaluations = [found[side][case.name]["evaluations"] for side in self._sides]
            for run in evaluations[0]:
                before = renamed(_prefixed(evaluations[0][run]), RENAMED_METRICS)
                yield difference_of(before, _prefixed(evaluations[1].get(run, {})), "evaluate: ")

    def _compared(self, case: Case, *errors: str | None) -> Comparison:
        total = Comparison(difference=next((error for error in errors if error), None))
        if total.difference is None:
            for run in case.runs:
                folders = [side.place / "runs" / run for side in self._sides]
                total.add(compare_runs(folders[0], folders[1], self._renames))
        return total


def _prefixed(metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {f"eval/{name}": value for name, value in metrics.items()}


def show(case: Case, found: Comparison) -> None:
    counts = f"{found.steps:>6} {found.metrics:>8} {found.samples:>8} {found.tensors:>8}"
    print(f"{case.name:<34} {counts}  {found.difference or 'equal'}", flush=True)


def compare_all(old: Side, new: Side, cases: Sequence[Case]) -> int:
    from benchmarks.equality.materials import write_materials

    write_materials(old.place.parent / "shared")
    began = time.monotonic()
    print(f"{'case':<34} {'steps':>6} {'metrics':>8} {'samples':>8} {'tensors':>8}", flush=True)
    different = 0
    for case, found in Comparer(old, new).compare(cases):
        show(case, found)
        different += found.difference is not None
    print(f"{len(cases) - different} of {len(cases)} cases are equal ({time.monotonic() - began:.0f} s)")
    return 1 if different else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", nargs="?", help="a checkout, or a commit of this repository")
    parser.add_argument("new", nargs="?", help="the same")
    parser.add_argument("--only", nargs="+", metavar="CASE", help="these cases")
    parser.add_argument("--list", action="store_true", help="the names of the cases")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="a new folder for the runs, kept")
    parser.add_argument("--speed", action="store_true", help="compare the seconds of GRPO steps instead")
    parser.add_argument("--steps", type=int, default=10, help="of --speed, after one that is not counted")
    given = parser.parse_args()
    if not given.list and given.new is None:
        parser.error("two versions are needed: OLD NEW")
    if unknown := set(given.only or ()) - set(all_cases()):
        parser.error(f"unknown cases: {', '.join(sorted(unknown))}")
    if given.keep is not None and given.keep.exists():
        parser.error(f"'{given.keep}' exists")
    return given


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that worktrees and processes are cleaned up
    given = arguments()
    cases = [case for name, case in all_cases().items() if not given.only or name in given.only]
    if given.list:
        print(*(case.name for case in cases), sep="\n")
        return 0
    with both_sides(given.old, given.new, RENAMED_KEYS, given.keep and given.keep.resolve()) as (old, new):
        if given.speed:
            from benchmarks.equality.speed import compare_speed

            return compare_speed(old, new, given.steps)
        return compare_all(old, new, cases)


if __name__ == "__main__":
    sys.exit(main())
