"""Measure the points that the simulator is validated against, and save them to docs/results/scale-points.json.

python -m benchmarks.scale_points [--steps N] [--out docs/results/scale-points.json]

A small Llama, GRPO through the real training loop, each run in its own process: without a judge, with judges that keep
up, and with two that are the bottleneck. A judge works on one part of a step while the next is sampled. Also on two
processes with --nproc.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from threading import Semaphore
from typing import Any

LAYERS, WIDTH, PROMPTS, GROUP, NEW_TOKENS = 6, 384, 8, 2, 16
RUNS = {"no judge": (0, 0.0), "16 judges of 0.5 s": (16, 0.5), "2 judges of 1.5 s": (2, 1.5)}
"""The number of samples judged at the same time, and the time of each."""
PHASES = ("rollout", "reward", "update")
JUDGES = "SCALE_POINTS_JUDGES"
_FREE = Semaphore(int(os.environ.get(JUDGES, "0/0").split("/")[0]))


async def judged(completions: list[str], **_: Any) -> list[float]:
    """Judge each sample by one of the judges set in the environment."""
    latency = float(os.environ[JUDGES].split("/")[1])

    async def one(text: str) -> float:
        while not _FREE.acquire(blocking=False):
            await asyncio.sleep(0.005)
        try:
            await asyncio.sleep(latency)
        finally:
            _FREE.release()
        return text.count("e") / (1 + len(text))

    return list(await asyncio.gather(*(one(text) for text in completions)))


def at_once(completions: list[str], **_: Any) -> list[float]:
    return [text.count("e") / (1 + len(text)) for text in completions]


def recipe_of(folder: Path, steps: int) -> dict[str, Any]:
    function = "judged" if JUDGES in os.environ else "at_once"
    return {
        "recipe": "scale-point",
        "method": {"name": "grpo"},
        "model": {"name": str(folder / "model"), "device": "cpu", "dtype": "float32"},
        "data": {"train": str(folder / "prompts.jsonl")},
        "reward": {"kind": "python", "function": f"benchmarks.scale_points:{function}"},
        "optimizer": {"actor_lr": 1e-5},
        "steps": steps,
        "prompts_per_step": PROMPTS,
        "group_size": GROUP,
        "max_new_tokens": NEW_TOKENS,
        "microbatch_tokens": 4096,
        "eval_every": 0,
        "save_every": 0,
    }


def prepare(folder: Path) -> None:
    """A model with random weights, and prompts of one length."""
    from transformers import AutoTokenizer

    from benchmarks.models import llama_config, save_random_model
    from benchmarks.prompts import prompt_rows
    from benchmarks.work import Work

    save_random_model(llama_config(LAYERS, WIDTH), folder / "model")
    work = Work(
        "scale-point", "smollm2-135m", PROMPTS, GROUP, NEW_TOKENS, device="cpu", dtype="float32", contestants=("ours",)
    )
    rows = prompt_rows(work, AutoTokenizer.from_pretrained(folder / "model"))
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def measured(folder: Path, steps: int) -> dict[str, float]:
    """Median seconds of a step and its phases without the first step, in this process."""
    from vigneron.methods import build_method
    from vigneron.recipe import check_config
    from vigneron.timing import WHOLE, recording_timings
    from vigneron.training.callbacks import Silent
    from vigneron.training.loop import train
    from vigneron.training.method import Method
    from vigneron.training.parts import Parts
    from vigneron.training.setup.start import start_run

    def build(parts: Parts) -> Method:
        parts.policy.eos_ids = frozenset()  # lengths are forced
        return build_method(parts)

    config = check_config(recipe_of(folder, steps + 1), "scale-point")
    with tempfile.TemporaryDirectory() as place:
        run = start_run(config, Path(place), build, view=Silent())
        with recording_timings() as watch:
            train(run, Silent())
        run.close()
    laps = watch.steps[1:]
    found = {name: statistics.median(lap.get(name, 0.0) for lap in laps) for name in (*PHASES, WHOLE)}
    return {name.replace(" ", "_"): round(value, 4) for name, value in found.items()}


def on_processes(folder: Path, processes: int, steps: int) -> float | None:
    """Median seconds of a step under `vigneron train --nproc`; None if it fails."""
    command = [sys.executable, "-m", "vigneron", "train"]
    if "--nproc" not in subprocess.run([*command, "--help"], capture_output=True, text=True, check=True).stdout:
        return None
    recipe = folder / "recipe.yaml"
    recipe.write_text(json.dumps(recipe_of(folder, steps + 1)))  # JSON is YAML too
    with tempfile.TemporaryDirectory() as runs:
        given = [str(recipe), "--nproc", str(processes), "--runs", runs, "--name", "run"]
        subprocess.run([*command, *given], check=True, capture_output=True)
        lines = (Path(runs) / "run" / "timings.jsonl").read_text().splitlines()
    return round(statistics.median(json.loads(line)["seconds"] for line in lines[1:]), 4)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale_points")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent.parent / "docs" / "results" / "scale-points.json"
    )
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.folder:
        print(json.dumps(measured(options.folder, options.steps)))
        return
    from benchmarks.measure import machine

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        prepare(folder)
        found: dict[str, Any] = {"machine": machine("cpu"), "runs": {}, "processes": {}}
        for name, (judges, latency) in RUNS.items():
            again = [sys.executable, "-m", "benchmarks.scale_points", "--folder", place, "--steps", str(options.steps)]
            environment = os.environ | ({JUDGES: f"{judges}/{latency}"} if judges else {})
            done = subprocess.run(again, capture_output=True, text=True, check=True, env=environment)
            seconds = json.loads(done.stdout.splitlines()[-1])
            found["runs"][name] = {"judges": judges, "judge_s": latency, **seconds}
            print(name, found["runs"][name], flush=True)
        for processes in (1, 2):
            took = on_processes(folder, processes, options.steps)
            if took is not None:
                found["processes"][str(processes)] = took
    options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
