"""Rows of Nim for `turns_study`. The task has 15 starts for tuning, too few to choose a rate by, and they are among the
positions that it evaluates. Here a third of all positions is for tuning, and the others are scored.

In both one move is played, which is what is scored. Positions that differ only in the order of their piles are in one
part. A legal move at random keeps the value in 0.29 of the 75 positions for tuning and in 0.30 of the 140 others.
Training begins where the task's does.
"""

import json
from pathlib import Path

from benchmarks.study_store import write_once
from vigneron.data.prompts import Row
from vigneron.data.tasks import load_task

PARTS = ("train", "tuning", "held_out")
TUNING_EVERY = 3


def nim_rows() -> dict[str, list[Row]]:
    """The rows of each part."""
    task = load_task("nim-positions")
    rows: dict[str, list[Row]] = {"train": [dict(row) for row in task.rows("train")], "tuning": [], "held_out": []}
    positions = task.rows("held_out")
    sets = sorted({tuple(sorted(row["piles"])) for row in positions})
    tuning = set(sets[::TUNING_EVERY])
    for row in positions:
        part = "tuning" if tuple(sorted(row["piles"])) in tuning else "held_out"
        rows[part].append({**row, "most_moves": 1})
    return rows


def write_nim_rows(runs: Path) -> None:
    for part, rows in nim_rows().items():
        write_once(_file(runs, part), "".join(json.dumps(row) + "\n" for row in rows))


def nim_data(runs: Path, held_out: str) -> str:
    """The change of a recipe that trains on the rows and evaluates on those of `held_out`."""
    files = {"train": _file(runs, "train"), "held_out": _file(runs, held_out)}
    return f"data={json.dumps({**{key: str(file) for key, file in files.items()}, 'checker': 'nim_optimal'})}"


def _file(runs: Path, part: str) -> Path:
    return (runs / ".rows" / f"nim-{part}.jsonl").resolve()
