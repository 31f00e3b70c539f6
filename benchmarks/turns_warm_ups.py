"""Warm-ups of `turns_study`: short SFT runs, one for each recipe and seed, which several jobs of the seed begin from.

Weights are in `RUNS/.warm-ups`, which no archive has. A machine that takes over an archive trains a warm-up again if it
needs one, perhaps to other bits. A seed's warm-up is a draw as the rest of the seed is, so nothing is compared that
should have begun alike but in arms of one seed; `turns_results.unlike_starts` names those.

The record of a warm-up is a folder `warm-up-NAME-DIGEST` with its log, its time and the digest of its weights, which
the results of its jobs repeat. It is packed as jobs are.
"""

import fcntl
import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.study_store import write_result
from vigneron.run_store.folder import RunFolder

RECORD = "warm-up.json"
"""Beside the weights: the name of their record, and their digest."""


def warm_up(recipe: str, changes: Sequence[str], seed: int, folder: Path) -> None:
    """Train the weights of a folder if it is not there; a process that comes meanwhile waits."""
    from vigneron import api
    from vigneron.files import sha256_of
    from vigneron.recipe import load_config

    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():
            return
        began, draft = time.monotonic(), folder.with_name(f"{folder.name}.training")
        shutil.rmtree(draft, ignore_errors=True)  # of a process that was killed
        config = load_config(recipe, (*changes, f"seed={seed}", "eval_every=0", "save_every=0"))
        trained = api.train(config, runs=draft.parent, name=draft.name)
        (checkpoint,) = (trained.folder / "checkpoints").glob("step-*")
        digest = " ".join(sha256_of(file) for file in sorted(checkpoint.glob("*.safetensors")))
        runs, record = folder.parent.parent, {"warm_up": f"warm-up-{folder.name}-{digest[:8]}", "weights": digest}
        place = runs / record["warm_up"]
        place.mkdir(exist_ok=True)
        for name in ("metrics.jsonl", "config.yaml"):
            shutil.copy(draft / name, place / name)
        losses = [one["loss/nll"] for one in RunFolder(trained.folder).metrics()]
        result = {"part": "warm-up", "recipe": folder.name, "seed": seed, "seconds": round(time.monotonic() - began, 1)}
        write_result(runs, place.name, {**result, **record, "first_loss": losses[0], "last_loss": losses[-1]})
        (checkpoint / RECORD).write_text(json.dumps(record), encoding="utf-8")
        checkpoint.rename(folder)
        shutil.rmtree(draft)


def record_of(folder: Path) -> dict[str, str]:
    """The name of a warm-up's record, and its weights' digest."""
    found: dict[str, str] = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    return found
