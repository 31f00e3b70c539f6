"""The study of docs/results/pgsrm.md: a list of runs, workers that train them, and reduced logs for the repository.

python -m benchmarks.study plan QUEUE [--only word-paper,ours,…]     writes the list, one run a line
python -m benchmarks.study work QUEUE RUNS                           trains what is left of it, one run after the other
python -m benchmarks.study keep RUNS FILE                            an archive of their logs, for the repository

Several workers can share a list, and a GPU.
"""

import argparse
import fcntl
import gc
import json
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

WORDS, SENTENCES = ("colors", "antonyms", "categories"), ("copying", "sentiment")
SEEDS = (0, 1, 2)
# Every tenth step of a run, and all evaluated ones.
KEPT_EVERY = 10

Run = tuple[str, ...]
"""Its name, its recipe, and what is changed."""

ABLATIONS = {
    "whole": (),
    "critic": (
        "method={name: actor_critic, entropy_coefficient: 0, kl: {coefficient: 0.01}}",
        "group_size=1",
        "prompts_per_step=100",
        "optimizer.critic_lr=1e-3",
    ),
    "no-kl": ("method.kl.coefficient=0",),
    "k1": ("method.kl={coefficient: 5e-5, estimator: k1}",),
    "prompt": ("data.template=null",),
    "two-tokens": ("max_new_tokens=2",),
    "slower": ("optimizer.actor_lr=1e-5",),
    "wordllama": ("reward={kind: semantic, embedder: wordllama, alpha: 4}",),
}
"""Each of our changes reverted separately."""

REPAIRS = {
    "no-entropy-bonus": ("method.entropy_coefficient=0",),
    "exact-kl": ("method.faithful=false", "method.value_position=last_completion", "method.kl.estimator=exact"),
}
"""Changes that may stabilize the paper's settings when the child earns no reward at first."""


def runs_of(tasks: tuple[str, ...], recipes: tuple[str, ...], seeds: tuple[int, ...]) -> Iterator[Run]:
    for seed in seeds:
        for task in tasks:
            for recipe in recipes:
                name = recipe.format(task)
                yield f"{name}-seed-{seed}", name, f"seed={seed}", "save_every=0"


def ablations() -> Iterator[Run]:
    for task in ("antonyms", "colors"):
        for name, changes in ABLATIONS.items():
            recipe = f"pgsrm-{task}"
            fixed = ("steps=200", "eval_every=50", "save_every=0", "data.held_out=tuning")
            yield f"{recipe}-{name}", recipe, f"recipe={recipe}-{name}", *fixed, *changes
    for name, changes in REPAIRS.items():
        recipe = "pgsrm-categories-paper"
        shorter = ("steps=400", "save_every=0", "data.held_out=tuning")
        yield f"{recipe}-{name}", recipe, f"recipe={recipe}-{name}", *shorter, *changes


PAPER, OURS = ("pgsrm-{}-paper", "pgsrm-{}-binary"), ("pgsrm-{}", "binary-{}", "sft-{}")
PARTS: Mapping[str, Callable[[], Iterator[Run]]] = {
    "word-paper": lambda: runs_of(WORDS, PAPER, SEEDS),
    "sentence-paper": lambda: runs_of(SENTENCES, PAPER, SEEDS[:1]),
    "word-ours": lambda: runs_of(WORDS, OURS, SEEDS),
    "sentence-ours": lambda: runs_of(SENTENCES, OURS, SEEDS),
    "ablations": ablations,
}


def plan(queue: Path, only: list[str]) -> None:
    lines = [shlex.join(run) + "\n" for part in only for run in PARTS[part]()]
    queue.write_text("".join(lines), encoding="utf-8")
    print(f"{len(lines)} runs in {queue}")


def take(queue: Path) -> list[str] | None:
    """Take the first remaining run, for one worker only."""
    with queue.open("r+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        lines = file.read().splitlines()
        file.seek(0)
        file.truncate()
        file.writelines(f"{line}\n" for line in lines[1:])
    return shlex.split(lines[0]) if lines else None


def work(queue: Path, runs: Path) -> int:
    """Train until the list is empty. A failed run is printed and skipped."""
    import torch

    failed = 0
    while (taken := take(queue)) is not None:
        try:
            print(train_one(runs, *taken), flush=True)
        except Exception:  # the other runs continue, and the exit status reports it
            traceback.print_exc()
            print(f"failed  {taken[0]}", flush=True)
            failed += 1
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return int(failed > 0)


def train_one(runs: Path, name: str, recipe: str, *changes: str) -> str:
    """Train without checkpoints, which take more than a gigabyte each; returns a line with the result."""
    from vigneron.methods import build_method
    from vigneron.recipe import load_config
    from vigneron.training import loop
    from vigneron.training.callbacks import Silent
    from vigneron.training.setup.start import start_run

    config = load_config(recipe, list(changes))
    run = start_run(config, runs, build_method, name=name, view=Silent())
    run.save = lambda metrics=None: None  # type: ignore[method-assign]
    try:
        loop.train(run, Silent())
        evaluated = [record["eval/accuracy"] for record in run.folder.metrics() if "eval/accuracy" in record]
        seconds = sorted(record["seconds"] for record in run.folder.records("timings.jsonl"))
    finally:
        run.close()
    (runs / name / "samples.sqlite").unlink()
    shown = [round(value, 2) for value in evaluated[:: max(1, len(evaluated) // 6)]]
    return f"{name}: held-out accuracy {shown}, {evaluated[-1]:.2f} at last; {seconds[len(seconds) // 2]:.3f} s a step"


def keep(runs: Path, file: Path) -> None:
    """Finished runs' configs and every tenth step, in four digits, in one file that `vigneron compare` reads."""
    from vigneron.run_store.archive import write_archive

    with TemporaryDirectory() as place:
        thin(runs, Path(place))
        write_archive(sorted(Path(place).iterdir()), file)


def thin(runs: Path, folder: Path) -> None:
    for run in sorted(path.parent for path in runs.glob("*/metrics.jsonl")):
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        config = (run / "config.yaml").read_text(encoding="utf-8")
        if f"\nsteps: {records[-1]['step']}\n" not in config:
            print(f"not finished: {run.name}")
            continue
        into = folder / run.name
        into.mkdir(parents=True, exist_ok=True)
        (into / "config.yaml").write_text(config, encoding="utf-8")
        kept = [r for r in records if r["step"] % KEPT_EVERY == 0 or any(name.startswith("eval/") for name in r)]
        lines = [json.dumps({name: short(value) for name, value in record.items()}) + "\n" for record in kept]
        (into / "metrics.jsonl").write_text("".join(lines), encoding="utf-8")


def short(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.study", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    planned = verbs.add_parser("plan")
    planned.add_argument("queue", type=Path)
    planned.add_argument("--only", default=",".join(PARTS))
    worker = verbs.add_parser("work")
    worker.add_argument("queue", type=Path)
    worker.add_argument("runs", type=Path)
    keeper = verbs.add_parser("keep")
    keeper.add_argument("runs", type=Path)
    keeper.add_argument("file", type=Path, help="NAME.tar.xz")
    given = parser.parse_args()
    if given.verb == "plan":
        only = given.only.split(",")
        if unknown := [part for part in only if part not in PARTS]:
            parser.error(f"--only: there is no part {unknown[0]!r}; there are {', '.join(PARTS)}")
        plan(given.queue, only)
    elif given.verb == "work":
        return work(given.queue, given.runs)
    else:
        keep(given.runs, given.file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
