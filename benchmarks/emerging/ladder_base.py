"""The model that the experiments on the ladder begin with: SmolLM2-135M after some steps of the recipe sft-ladder.

    python -m benchmarks.emerging.ladder_base --out FOLDER     trains it into FOLDER/runs/base

Of the checkpoints, the one whose accuracy on the tuning part is nearest to 0.45 is kept: sums of one and two terms are
then mostly right, sums of five mostly wrong.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from benchmarks.emerging.records import arguments

WANTED = 0.45


def ladder_base(out: Path, *, small: bool = False) -> tuple[str, int]:
    """The model's folder, trained once, and its number of SFT steps. `small`: a tiny random model."""
    if small:
        from benchmarks.fuzzing.tiny import save_tiny_model

        if not (out / "base").is_dir():
            save_tiny_model(out / "base")
        return str((out / "base").resolve()), 0
    from vigneron import api

    run = out / "runs" / "base"
    if not (run / "chosen.json").is_file():
        shutil.rmtree(run, ignore_errors=True)  # of an interrupted start
        keys = ("save_every=5", "eval_every=5", "keep_last=8", "model.compile=false", "data.held_out=tuning")
        api.train("sft-ladder", *keys, runs=run.parent, name=run.name)
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        kept = {int(folder.name.removeprefix("step-")) for folder in (run / "checkpoints").glob("step-*")}
        found = {r["step"]: r["eval/accuracy"] for r in records if r["step"] in kept and "eval/accuracy" in r}
        step = min(found, key=lambda at: abs(found[at] - WANTED))
        for folder in (run / "checkpoints").glob("step-*"):
            if folder.name != f"step-{step}":
                shutil.rmtree(folder)
        (run / "chosen.json").write_text(json.dumps({"step": step, "tuning": found}))
        print(f"base: step {step} of sft-ladder, accuracy on the tuning part by step {found}", flush=True)
    step = json.loads((run / "chosen.json").read_text())["step"]
    return str((run / "checkpoints" / f"step-{step}").resolve()), step


def main(given: Sequence[str] | None = None) -> None:
    print(ladder_base(arguments(__doc__, given).out))


if __name__ == "__main__":
    main()
