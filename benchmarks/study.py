"""The study of docs/results/pgsrm.md: a list of runs, workers that train them, and reduced logs for the repository.

python -m benchmarks.study plan QUEUE [--only word-paper,ours,…]     writes the list, one run a line
python -m benchmarks.study work QUEUE RUNS                           trains what is left of it, one run after the other
python -m benchmarks.study choose TUNING QUEUE                       lists SFT as chosen on tuning rows, three seeds
python -m benchmarks.study keep RUNS FILE                            an archive of their logs, for the repository

Several workers can share a list, and a GPU.
"""

import argparse
import fcntl
import gc
import shlex
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from benchmarks.study_store import pack_runs

WORDS, SENTENCES = ("colors", "antonyms", "categories"), ("copying", "sentiment")
SEEDS = (0, 1, 2)

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


RATES = ("2e-6", "5e-6", "1e-5", "2e-5", "5e-5")


def sft_tuning() -> Iterator[Run]:
    """SFT on the tuning rows, at several learning rates: which rate, and when to stop."""
    for task in (*WORDS, *SENTENCES):
        for rate in RATES:
            fixed = ("steps=200", "eval_every=10", "save_every=0", "data.held_out=tuning", f"optimizer.actor_lr={rate}")
            yield f"sft-{task}-{rate}", f"sft-{task}", f"recipe=sft-{task}-{rate}", *fixed


def sft_chosen(tuning: Path) -> Iterator[Run]:
    """Each task at the rate and step with the best accuracy on the tuning rows; of equals, the earliest, then the
    lowest rate."""
    from vigneron.run_store.folder import RunFolder

    for task in (*WORDS, *SENTENCES):
        curves = {rate: RunFolder.open(tuning / f"sft-{task}-{rate}").metrics() for rate in RATES}
        found = [
            (-record["eval/accuracy"], record["step"], RATES.index(rate))
            for rate, records in curves.items()
            for record in records
            if record["step"] > 0 and "eval/accuracy" in record
        ]
        accuracy, steps, rate = min(found)
        print(f"sft-{task}: {RATES[rate]}, {steps} steps, {-accuracy:.3f} on the tuning rows")
        for seed in SEEDS:
            name = f"sft-{task}-chosen"
            changes = (f"recipe={name}", f"seed={seed}", f"steps={steps}", f"optimizer.actor_lr={RATES[rate]}")
            yield f"{name}-seed-{seed}", f"sft-{task}", *changes, "eval_every=10", "save_every=0"


PAPER, OURS = ("pgsrm-{}-paper", "pgsrm-{}-binary"), ("pgsrm-{}", "binary-{}", "sft-{}")
PARTS: Mapping[str, Callable[[], Iterator[Run]]] = {
    "word-paper": lambda: runs_of(WORDS, PAPER, SEEDS),
    "sentence-paper": lambda: runs_of(SENTENCES, PAPER, SEEDS[:1]),
    "word-ours": lambda: runs_of(WORDS, OURS, SEEDS),
    "sentence-ours": lambda: runs_of(SENTENCES, OURS, SEEDS),
    "ablations": ablations,
    "sft-tuning": sft_tuning,
}


def plan(queue: Path, runs: Iterable[Run]) -> None:
    lines = [shlex.join(run) + "\n" for run in runs]
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
    from vigneron.run_store import eval_rows
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
    rows = eval_rows.read_eval_rows(runs / name)
    (runs / name / eval_rows.FILE).write_text(eval_rows.eval_row_lines(rows), encoding="utf-8")
    (runs / name / "samples.sqlite").unlink()
    shown = [round(value, 2) for value in evaluated[:: max(1, len(evaluated) // 6)]]
    return f"{name}: held-out accuracy {shown}, {evaluated[-1]:.2f} at last; {seconds[len(seconds) // 2]:.3f} s a step"


def keep(runs: Path, file: Path) -> None:
    """The reduced logs of finished runs, in one file that `vigneron compare` reads."""
    from vigneron.run_store.folder import RunFolder

    finished = []
    for path in sorted(path.parent for path in runs.glob("*/metrics.jsonl")):
        folder = RunFolder.open(path)
        if folder.metrics()[-1]["step"] == folder.config().steps:
            finished.append(path)
        else:
            print(f"not finished: {path.name}")
    pack_runs(finished, file)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.study", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    planned = verbs.add_parser("plan")
    planned.add_argument("queue", type=Path)
    planned.add_argument("--only", default=",".join(PARTS))
    chooser = verbs.add_parser("choose")
    chooser.add_argument("tuning", type=Path)
    chooser.add_argument("queue", type=Path)
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
        plan(given.queue, (run for part in only for run in PARTS[part]()))
    elif given.verb == "choose":
        plan(given.queue, list(sft_chosen(given.tuning)))
    elif given.verb == "work":
        return work(given.queue, given.runs)
    else:
        keep(given.runs, given.file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
