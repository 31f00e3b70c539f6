"""Which checkpoints stay: the newest ones, and the best by a held-out figure."""

import json
import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vigneron.files import write_atomically, writing
from vigneron.run_store.metric_table import lower_is_better
from vigneron.training.checkpoint.read import SCALARS, checkpoint_step, checkpoints

BEST = "best.json"


@dataclass(frozen=True)
class Keep:
    last: int
    best: str | None = None
    """The name of a figure, as in metrics.jsonl."""


def best_checkpoint(folder: Path, figure: str) -> tuple[Path, float] | None:
    """The best of those that are there and were evaluated, the earlier of equal ones. Each carries its figures: a kill
    between a save and a look back loses nothing."""
    sign = -1 if lower_is_better(figure) else 1
    found = [(path, value) for path in checkpoints(folder) if (value := _figure(path, figure)) is not None]
    return max(found, key=lambda pair: (sign * pair[1], -checkpoint_step(pair[0])), default=None)


def prune(folder: Path, keep: Keep) -> None:
    best = best_checkpoint(folder, keep.best) if keep.best is not None else None
    if keep.best is not None and best is not None:
        record = {"step": checkpoint_step(best[0]), "figure": keep.best, "value": best[1]}
        with writing(folder / BEST):
            write_atomically(folder / BEST, json.dumps(record) + "\n")
    for old in checkpoints(folder)[: -keep.last]:
        if best is None or old != best[0]:
            # Under a name that is swept, should the process end in the middle.
            going = old.with_name(f".{old.name}.draft")
            shutil.rmtree(going, ignore_errors=True)
            old.rename(going)
            shutil.rmtree(going, ignore_errors=True)


def _figure(path: Path, figure: str) -> float | None:
    try:
        scalars: Any = json.loads((path / SCALARS).read_text(encoding="utf-8"))
        value = float(scalars["figures"][figure])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return value if math.isfinite(value) else None
