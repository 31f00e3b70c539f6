"""Run comparisons: a parity check, then each contestant in its own process; prints a table and `ratio NAME VALUE`.

python -m benchmarks NAME [NAME …] [--steps N] [--only ours,trl-tuned] [--out DIR]
python -m benchmarks NAME … --resume FILE --budget 540 --limit 240
python -m benchmarks NAME --only trl-tuned --warmups 0 --steps 1 --resume FILE
python -m benchmarks NAME --parity --resume FILE

The second is for machines that are lent in pieces: results are appended to the file as they come, and what it has is
not run again. The third is for a peer of which one step takes minutes. The fourth measures only whether both sides
compute the same.
"""

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

from benchmarks.arguments import make_folder, with_pace
from benchmarks.comparison import compared
from benchmarks.models import shape_folder
from benchmarks.parity import Parity, check_parity
from benchmarks.processes import LONGEST_S, Budget, start
from benchmarks.records import Records
from benchmarks.work import WORKS, Contestant, Work

MODULES = {"ours": "ours", "trl": "peer_trl", "released": "peer_pgsrm", "vllm": "peer_vllm"}
"""By the first part of a contestant's name."""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="+", choices=WORKS, metavar="NAME", help=f"of {', '.join(WORKS)}")
    parser.add_argument("--steps", type=int, help="number of steps to measure, without a time limit")
    parser.add_argument("--warmups", type=int, help="steps before those that are measured; 0 where one takes minutes")
    parser.add_argument("--patience", type=float, help="time limit in seconds, once five steps are measured")
    parser.add_argument("--only", help="comma-separated contestants")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks"), help="folder for NAME.json")
    parser.add_argument("--resume", type=Path, help="file of results: append to it, and leave out what it has")
    parser.add_argument("--retry", action="store_true", help="with --resume: run again what has failed")
    parser.add_argument("--parity", action="store_true", help="the parity checks alone, unless they are recorded")
    parser.add_argument("--limit", type=float, default=LONGEST_S, help="time limit of each contestant in seconds")
    parser.add_argument("--budget", type=float, default=float("inf"), help="time limit of all together in seconds")
    given = parser.parse_args()
    if given.steps is not None and given.steps < 1:
        parser.error("--steps: at least 1")
    if given.warmups is not None and given.warmups < 0:
        parser.error("--warmups: at least 0")
    works = [with_pace(WORKS[name], given.steps, given.patience, given.warmups) for name in given.names]
    only = given.only.split(",") if given.only else None
    chosen = {work.name: possible(work, only) for work in works}
    if given.parity and (without := [work.name for work in works if not needs_parity(chosen[work.name])]):
        parser.error(f"--parity: {', '.join(without)} has no peer to be equal to")
    make_folder(given.out)
    records, budget = Records(given.resume), Budget(given.limit, given.budget)
    failed = False
    for work in works:
        prepare(work, records, budget)
        if needs_parity(chosen[work.name]) and (why := find_parity(work, records, budget)) is not None:
            print(f"{work.name}: {why}: no speed is reported", flush=True)
            failed = True
            continue
        if given.parity:
            print(f"{work.name}: parity holds", flush=True)
            continue
        run_contestants(work, chosen[work.name], records, budget, retry=given.retry, warmups=given.warmups)
        comparison = compared(work, records)
        if comparison is None:
            continue
        comparison.save(given.out / f"{work.name}.json")
        print("\n".join(comparison.lines()), flush=True)
        failed = failed or bool(comparison.failures)
    if budget.spent:
        print("the time is over: run the same command again to continue", file=sys.stderr)
    return int(failed or budget.spent)


def possible(work: Work, only: list[str] | None) -> list[str]:
    """Check devices and packages before anything is measured. Without `--only`, a peer that is not installed is left
    out."""
    import torch

    peer = {"grpo": ("trl", "vllm"), "actor_critic": ("released",)}[work.method]
    known = [name for name in get_args(Contestant) if name.startswith(("ours", *peer))]
    unknown = [name for name in only or () if name not in known]
    if unknown:
        raise SystemExit(f"{work.name} has no contestant {', '.join(unknown)}; it has {', '.join(known)}")
    if work.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit(f"{work.name} needs a CUDA device, and torch sees none; cpu-4x4x16 and smoke-… run on a CPU")
    chosen = []
    for contestant in only or work.contestants:
        missing = [name for name in ("trl", "vllm") if name in contestant.split("-") and find_spec(name) is None]
        if not missing:
            chosen.append(contestant)
        elif only is not None or missing == ["trl"]:
            raise SystemExit(f"{missing[0]} is not installed: run `make bench-setup`; vLLM needs a CUDA device")
        else:
            print(f"{work.name}: {contestant} is left out: {missing[0]} is not installed", file=sys.stderr)
    return chosen


def needs_parity(contestants: list[str]) -> bool:
    return any(name.startswith(("trl", "released")) for name in contestants)


def prepare(work: Work, records: Records, budget: Budget) -> None:
    """The model's folder and the machine's rates, each made in a process that leaves the GPU again."""
    with tempfile.TemporaryDirectory() as place:
        if not shape_folder(work.model).is_dir():
            made = start("models", Path(place), model=work.model)
            if (why := made.failure(budget.next_s)) is not None:
                raise SystemExit(f"the model {work.model} cannot be made: {why}")
        if records.get("ceilings", work.device, work.dtype) is None:
            out = Path(place) / "ceilings.json"
            rates = start("floor", Path(place), device=work.device, dtype=work.dtype, out=out)
            if (why := rates.failure(budget.next_s)) is not None:
                raise SystemExit(f"the machine's rates cannot be measured: {why}")
            records.add("ceilings", work.device, work.dtype, json.loads(out.read_text()))


def find_parity(work: Work, records: Records, budget: Budget) -> str | None:
    """Run the parity check unless it is recorded; the reason if it does not hold."""
    key = ", ".join(work.parity_key)
    kept = records.get("parity", key)
    if kept is None:
        print(f"{work.name}: parity …", file=sys.stderr, flush=True)
        try:
            with tempfile.TemporaryDirectory() as place:
                kept = asdict(check_parity(work, Path(place), budget.next_s))
        except SystemExit as error:
            return str(error)
        records.add("parity", key, "", kept)
    parity = Parity(**kept)
    if not parity.failures:
        return None
    print("\n".join(parity.lines()))
    return f"out of tolerance: {', '.join(parity.failures)}"


def run_contestants(
    work: Work,
    contestants: list[str],
    records: Records,
    budget: Budget,
    *,
    retry: bool = False,
    warmups: int | None = None,
) -> None:
    """Run contestants one after the other, each in its own process, so that peak memory is measured separately.
    `warmups`: in place of those of each contestant's pace."""
    for contestant in contestants:
        done = records.get("measurement", work.name, contestant)
        if done is not None or (not retry and records.get("failure", work.name, contestant) is not None):
            continue
        if budget.spent:
            return
        limit_s = budget.next_s
        print(f"{work.name}: {contestant}, {limit_s:.0f} s at most …", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as place:
            out = Path(place) / "measured.jsonl"
            module = MODULES[contestant.partition("-")[0]]
            paced = work.at_pace_of(contestant)
            pace: dict[str, float] = {"steps": paced.steps, "patience": paced.patience_s}
            if warmups is not None:
                pace["warmups"] = warmups
            why = start(module, Path(place), work=work.name, contestant=contestant, out=out, **pace).failure(limit_s)
            for line in out.read_text().splitlines() if out.is_file() else ():
                measured = json.loads(line)
                records.add("measurement", work.name, measured["contestant"], measured)
        # What the end of all time has cut is run again.
        if why is not None and not budget.spent and records.get("measurement", work.name, contestant) is None:
            records.add("failure", work.name, contestant, {"why": why})


if __name__ == "__main__":
    sys.exit(main())
