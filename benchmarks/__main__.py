"""Run comparisons: a parity check, then each contestant in its own process; prints a table and `ratio NAME VALUE`.

python -m benchmarks NAME [NAME …] [--steps N] [--only ours,trl-tuned] [--out DIR]
"""

import argparse
import json
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

from benchmarks.arguments import make_folder, with_pace
from benchmarks.comparison import Comparison
from benchmarks.measure import Measurement
from benchmarks.parity import Parity
from benchmarks.processes import start
from benchmarks.work import WORKS, Contestant, Work

MODULES = {"ours": "ours", "trl": "peer_trl", "released": "peer_pgsrm"}
"""By the first part of a contestant's name."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="+", choices=WORKS, metavar="NAME", help=f"of {', '.join(WORKS)}")
    parser.add_argument("--steps", type=int, help="number of steps to measure, without a time limit")
    parser.add_argument("--patience", type=float, help="time limit in seconds, once five steps are measured")
    parser.add_argument("--only", help="comma-separated contestants")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks"), help="folder for NAME.json")
    given = parser.parse_args()
    if given.steps is not None and given.steps < 1:
        parser.error("--steps: at least 1")
    works = [with_pace(WORKS[name], given.steps, given.patience) for name in given.names]
    only = given.only.split(",") if given.only else None
    for work in works:
        check_possible(work, only or list(work.contestants))
    make_folder(given.out)
    parities: dict[tuple[str, ...], Parity] = {}
    failed = False
    for work in works:
        same = (work.model, work.method, work.device)  # parity is checked once for each of these
        parities[same] = parities.get(same) or passed_parity(work)
        comparison = compare(work, only or list(work.contestants), parities[same])
        comparison.save(given.out / f"{work.name}.json")
        print("\n".join(comparison.lines()), flush=True)
        failed = failed or bool(comparison.failures)
    return int(failed)


def passed_parity(work: Work) -> Parity:
    """Run the parity check and exit if a difference exceeds its tolerance."""
    from benchmarks.models import model_folder
    from benchmarks.parity import check_parity

    model_folder(work.model)  # created before two processes need it at the same time
    with tempfile.TemporaryDirectory() as place:
        parity = check_parity(work, Path(place))
    if parity.failures:
        print("\n".join(parity.lines()))
        raise SystemExit(f"out of tolerance: {', '.join(parity.failures)}: no speed is reported")
    return parity


def check_possible(work: Work, contestants: list[str]) -> None:
    """Check devices and packages before anything is measured."""
    import torch

    peer = {"grpo": "trl", "actor_critic": "released"}[work.method]
    known = [name for name in get_args(Contestant) if name == "ours" or name.startswith(peer)]
    unknown = [name for name in contestants if name not in known]
    if unknown:
        raise SystemExit(f"{work.name} has no contestant {', '.join(unknown)}; it has {', '.join(known)}")
    if work.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit(f"{work.name} needs a CUDA device, and torch sees none; cpu-4x4x16 and smoke-… run on a CPU")
    if work.method == "grpo" and find_spec("trl") is None:
        raise SystemExit("trl is not installed: run `make bench-setup`")


def compare(work: Work, contestants: list[str], parity: Parity) -> Comparison:
    from transformers import AutoConfig, AutoTokenizer

    from benchmarks.floor import Shape, floor_seconds, measure_ceilings
    from benchmarks.measure import commit, machine
    from benchmarks.models import model_folder
    from benchmarks.prompts import prompt_rows

    folder = model_folder(work.model)
    with tempfile.TemporaryDirectory() as place:
        config, tokenizer = AutoConfig.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
        rows = prompt_rows(work, tokenizer)
        prompt_tokens = sum(len(tokenizer(row["prompt"])["input_ids"]) for row in rows) / len(rows)
        ceilings = measure_ceilings(work.device, work.dtype)
        floor = floor_seconds(work, Shape.of(config), ceilings, prompt_tokens)
        measured, failures = run_contestants(work, contestants, Path(place))
    return Comparison(
        work, machine(work.device), ceilings, floor, parity, config.vocab_size, tuple(measured), failures, commit()
    )


def run_contestants(work: Work, contestants: list[str], place: Path) -> tuple[list[Measurement], dict[str, str]]:
    """Run contestants one after the other, each in its own process, so that peak memory is measured separately."""
    measured: list[Measurement] = []
    failures: dict[str, str] = {}
    for contestant in contestants:
        print(f"{work.name}: {contestant} …", file=sys.stderr, flush=True)
        out = place / f"{contestant}.json"
        module = MODULES[contestant.partition("-")[0]]
        pace = {"steps": work.steps, "patience": work.patience_s}
        why = start(module, place, work=work.name, contestant=contestant, out=out, **pace).failure()
        if why is None:
            measured.append(Measurement.of(json.loads(out.read_text())))
        else:
            failures[contestant] = why
    return measured, failures


if __name__ == "__main__":
    sys.exit(main())
