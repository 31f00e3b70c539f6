"""Run the comparison: the model's SFT, ours, a single turn of as many tokens, TRL; each in its own process.

python -m benchmarks.turns [NAME] [--resume FILE] [--again ours,single-turn] [--budget SECONDS]
python -m benchmarks.turns --resume FILE --page docs/results/performance.md

Prints a table and `ratio NAME VALUE`. With --resume results are appended to the file as they come, and what it has is
not run again, but for what --again names: its new results replace the old ones. The second command writes what the file
has into the page.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from benchmarks.processes import LONGEST_S, Budget, start
from benchmarks.records import Records
from benchmarks.turns.report import faults, filled, lines, results_of
from benchmarks.turns.result import Result
from benchmarks.turns.work import CALLS, WORKS, TurnsWork

MODULES = {"ours": "ours", "single-turn": "ours", "trl-tuned": "trl"}
"""Contestants in their order, each with its module."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.turns", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="?", choices=WORKS, default="turns")
    parser.add_argument("--only", help="comma-separated contestants", default=",".join(MODULES))
    parser.add_argument("--resume", type=Path, help="file of results: append to it, and leave out what it has")
    parser.add_argument("--again", help="comma-separated contestants to measure though the file has them", default="")
    parser.add_argument("--limit", type=float, default=LONGEST_S, help="time limit of each contestant in seconds")
    parser.add_argument("--budget", type=float, default=float("inf"), help="time limit of all together in seconds")
    parser.add_argument("--page", type=Path, help="page with marks to fill; nothing is run")
    given = parser.parse_args(arguments)
    records = Records(given.resume)
    if given.page is not None:
        given.page.write_text(filled(given.page.read_text(), records))
        return 0
    contestants, again = given.only.split(","), [name for name in given.again.split(",") if name]
    for option, names in (("--only", contestants), ("--again", again)):
        if unknown := [name for name in names if name not in MODULES]:
            parser.error(f"{option}: no contestant {', '.join(unknown)}; there are {', '.join(MODULES)}")
    work = WORKS[given.name]
    failures = run(work, contestants, records, Budget(given.limit, given.budget), again)
    results = results_of(work, records)
    print("\n".join(lines(work, results)), flush=True)
    failures += faults(results)
    for why in failures:
        print(f"FAILED {why}", file=sys.stderr)
    return int(bool(failures))


def run(
    work: TurnsWork, contestants: list[str], records: Records, budget: Budget, again: Sequence[str] = ()
) -> list[str]:
    """Run what is not recorded, and what is to be measured again; the errors of what failed."""
    recorded = {name for name in contestants if records.get("measurement", work.name, name) is not None}
    asked = [name for name in MODULES if name in again or name in set(contestants) - recorded]
    if not asked:
        return []
    _check_machine(work)
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        if (why := _make_model(work, place, budget)) is not None:
            return [why]
        for name in asked:
            if budget.spent:
                return [*failures, "the time is over: run the same command again to continue"]
            if name != "ours" and (why := _not_calling(work, records)) is not None:
                return [*failures, why]
            if (why := _measure(work, name, place, records, budget)) is not None:
                failures.append(f"{name}: {why}")
    return failures


def _check_machine(work: TurnsWork) -> None:
    import torch

    if find_spec("trl") is None:
        raise SystemExit("trl is not installed: run `make bench-setup`")
    if work.step.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit(f"{work.name} needs a CUDA device, and torch sees none; smoke-turns runs on a CPU")


def _make_model(work: TurnsWork, place: Path, budget: Budget) -> str | None:
    from benchmarks.turns.model import folder_of

    if folder_of(work).is_dir():
        return None
    print(f"{work.name}: SFT …", file=sys.stderr, flush=True)
    why = start("turns.model", place, work=work.name).failure(budget.next_s)
    return None if why is None else f"the model cannot be made: {why}"


def _not_calling(work: TurnsWork, records: Records) -> str | None:
    """Why nothing can be held against ours, if so."""
    kept = records.get("measurement", work.name, "ours")
    if kept is None:
        return "run ours first: the others are held against its turns and tokens"
    ours = Result.of(kept)
    turns, calls = ours.per_sample("turns"), ours.per_sample("calls")
    if turns >= work.fewest_turns:
        return None
    return (
        f"the model has not learnt to call: {turns:.2f} turns and {calls:.2f} of {CALLS} calls a sample after the SFT"
    )


def _measure(work: TurnsWork, name: str, place: Path, records: Records, budget: Budget) -> str | None:
    from benchmarks.turns.model import folder_of

    limit_s, out = budget.next_s, place / f"{name}.jsonl"
    print(f"{work.name}: {name}, {limit_s:.0f} s at most …", file=sys.stderr, flush=True)
    options = {"work": work.name, "contestant": name, "model": folder_of(work), "out": out}
    if name == "single-turn":
        ours = Result.of(records.get("measurement", work.name, "ours") or {})
        options["tokens"] = round(ours.per_sample("sampled") + ours.per_sample("replies"))
    why = start(f"turns.{MODULES[name]}", place, **options).failure(limit_s)
    for line in out.read_text().splitlines() if out.is_file() else ():
        result = Result.of(json.loads(line))
        records.add("measurement", work.name, result.name, result.value())
        print(f"{result.name}: {result.measurement.seconds:.3g} s a step", file=sys.stderr, flush=True)
    return why


if __name__ == "__main__":
    sys.exit(main())
