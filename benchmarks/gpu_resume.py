"""`python -m benchmarks.gpu_resume`: the difference between a resumed and an uninterrupted run, and the device's noise.

The same GRPO run of SmolLM2-135M three times: twice from start to end, once killed by SIGKILL and resumed. On a CPU all
differences are 0. On a GPU two equal runs differ by the order of summation; a resumed run should not differ more.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

STEPS, SAVE_EVERY, KILLED_AT = 12, 4, 7
CHANGES = (f"steps={STEPS}", f"save_every={SAVE_EVERY}", "eval_every=6", "keep_last=1", "microbatch_tokens=2048")


class Killer:
    def __init__(self, at: int | None) -> None:
        self.at = at

    def notice(self, text: str) -> None: ...

    def step(self, run: Any, *_: Any) -> None:
        if run.step == self.at:
            os.kill(os.getpid(), signal.SIGKILL)


def train(runs: Path, name: str, device: str, kill_at: int | None) -> None:
    from vigneron import api

    if (runs / name / "config.yaml").is_file():
        api.resume(runs / name, view=Killer(None))
    else:
        changes = (*CHANGES, f"model.device={device}")
        api.train("grpo-antonyms", *changes, name=name, runs=runs, view=Killer(kill_at))


def in_own_process(runs: Path, name: str, device: str, kill_at: int | None = None) -> None:
    kill = ["--kill-at", str(kill_at)] if kill_at else []
    words = ["--runs", str(runs), "--run-name", name, "--device", device, *kill]
    code = subprocess.run([sys.executable, "-m", "benchmarks.gpu_resume", *words]).returncode
    if code != (-signal.SIGKILL if kill_at else 0):
        raise SystemExit(f"the run '{name}' ended with {code}")
    print(f"{name}: {'killed in step ' + str(kill_at) if kill_at else 'done'}", flush=True)


def difference(one: Path, other: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    weights = [load_file(run / "checkpoints" / f"step-{STEPS}" / "model.safetensors") for run in (one, other)]
    gaps = {name: (weights[0][name] - weights[1][name]).abs() for name in weights[0]}
    squares = sum(float(gap.double().square().sum()) for gap in gaps.values())
    count = sum(gap.numel() for gap in gaps.values())
    records = [[json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()] for run in (one, other)]
    gaps_by_metric = [
        (abs(a[key] - b[key]), key, a["step"])
        for a, b in zip(*records, strict=True)
        for key in a
        if isinstance(a[key], float) and isinstance(b.get(key), float)
    ]
    largest, metric, step = max(gaps_by_metric)
    return {
        "weights, largest": max(float(gap.max()) for gap in gaps.values()),
        "weights, root mean square": (squares / count) ** 0.5,
        "metrics, largest": largest,
        "which": f"{metric} at step {step}" if largest else "none",
        "reward, largest": max(gap for gap, key, _ in gaps_by_metric if key == "reward"),
        "same samples drawn": _completions(one) == _completions(other),
    }


def _completions(run: Path) -> list[str]:
    from vigneron.run_store.samples import SampleStore

    store = SampleStore(run, read_only=True)
    return [sample.completion for step in store.steps("train") for sample in store.page(step=step)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--runs", type=Path, help="folder to keep the runs in, about 5 GB; deleted if not given")
    parser.add_argument("--run-name", help=argparse.SUPPRESS)
    parser.add_argument("--kill-at", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run_name is not None:
        train(given.runs, given.run_name, given.device, given.kill_at)
        return
    with tempfile.TemporaryDirectory() as place:
        runs = given.runs or Path(place)
        for name in ("first", "second"):
            in_own_process(runs, name, given.device)
        in_own_process(runs, "killed", given.device, KILLED_AT)
        in_own_process(runs, "killed", given.device)
        pairs = {"two equal runs": ("first", "second"), "resumed and uninterrupted": ("first", "killed")}
        found = {name: difference(runs / one, runs / other) for name, (one, other) in pairs.items()}
    print(f"\n| largest difference after {STEPS} steps | {' | '.join(found)} |\n|---|---|---|")
    for row in next(iter(found.values())):
        cells = [found[name][row] for name in found]
        print(f"| {row} | {' | '.join(f'{c:.3g}' if isinstance(c, float) else str(c) for c in cells)} |")


if __name__ == "__main__":
    main()
