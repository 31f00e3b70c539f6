"""The model that the experiments on the ladder begin with: SmolLM2-135M after some steps of the recipe sft-ladder.

    python -m benchmarks.emerging.ladder_base --out FOLDER     trains it into FOLDER/runs/base

It gets 0.44 of the tuning sums right: of one and two terms most, of five few.

The experiments train on fresh sums: with the 540 of the task's `train` alone GRPO learns them by heart, and held-out
accuracy does not move.
"""

import shutil
from collections.abc import Sequence
from functools import cache
from itertools import combinations_with_replacement
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.emerging.records import arguments

STEPS = 60


def ladder_base(out: Path, *, small: bool = False) -> tuple[str, int]:
    """The model's folder, trained once, and its number of SFT steps. `small`: a tiny random model."""
    if small:
        from benchmarks.fuzzing.tiny import save_tiny_model

        if not (out / "base").is_dir():
            save_tiny_model(out / "base")
        return str((out / "base").resolve()), 0
    from vigneron import api

    run = out / "runs" / "base"
    if not (run / "done").is_file():
        shutil.rmtree(run, ignore_errors=True)  # of an interrupted start
        keys = (f"steps={STEPS}", "save_every=0", "eval_every=0", "model.compile=false", "data.held_out=tuning")
        api.train("sft-ladder", *keys, runs=run.parent, name=run.name)
        (run / "done").touch()
    return str((run / "checkpoints" / f"step-{STEPS}").resolve()), STEPS


@cache
def fresh_sums(per_level: int, *, small: bool = False) -> list[dict[str, Any]]:
    """Sums of every level as the task's rows, `per_level` each or as many as there are: none of the tuning or held-out
    part, and none of three terms or more that the base was fine-tuned on. Drawn once; not to be changed."""
    from vigneron.data.ladder import LARGEST_ALONE, LARGEST_TERM, LEVELS, ladder_row
    from vigneron.data.tasks import load_task

    task, draw = load_task("ladder-steps"), Random(1000)
    kept = {terms_of(row) for part in ("tuning", "held_out") for row in task.rows(part)}
    kept |= {terms_of(row) for row in task.rows("train") if row["level"] > 2}
    rows: list[dict[str, Any]] = []
    for level in range(1, LEVELS + 1):
        largest = LARGEST_TERM if level > 1 else LARGEST_ALONE
        possible = list(combinations_with_replacement(range(1, largest + 1), level))
        count = 0
        for terms in draw.sample(possible, len(possible)):
            row = ladder_row(draw.sample(list(terms), level), "train")
            if count < per_level and terms_of(row) not in kept:
                rows.append({**row, "prompt": task.child_prompt.format(**row), "answer": row["steps"]})
                count += 1
    return rows[:: max(1, len(rows) // 10)] if small else rows


def terms_of(row: dict[str, Any]) -> tuple[str, ...]:
    """The terms of a sum, in whichever order."""
    return tuple(sorted(row["terms"].split(" + ")))


def main(given: Sequence[str] | None = None) -> None:
    print(ladder_base(arguments(__doc__, given).out))


if __name__ == "__main__":
    main()
