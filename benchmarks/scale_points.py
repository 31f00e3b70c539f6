"""Measure what the simulator is checked against, on this machine, and keep it in docs/scale-points.json.

python -m benchmarks.scale_points [--steps N] [--out docs/scale-points.json]

A small Llama, GRPO through the real training loop, each run in a process of its own: twice without a judge, for the
service times of sampling, reward and update at two sizes; once with a judge that takes half a second, which works on
one part of a step while the next is sampled. Where `vigneron train` knows --nproc, also on two processes.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

LAYERS, WIDTH, PROMPT_TOKENS, GROUP, NEW_TOKENS = 6, 384, 32, 2, 16
JUDGE_S = 0.5
RUNS = {"4 rows": (2, 0.0), "16 rows": (8, 0.0), "16 rows, judge": (8, JUDGE_S)}
"""Prompts a step, and the judge's latency."""
PHASES = ("rollout", "reward", "update")


async def late(completions: list[str], **_: Any) -> list[float]:
    """Every sample at once, after the judge's latency."""
    await asyncio.sleep(JUDGE_S)
    return [text.count("e") / (1 + len(text)) for text in completions]


def at_once(completions: list[str], **_: Any) -> list[float]:
    return [text.count("e") / (1 + len(text)) for text in completions]


def recipe_of(folder: Path, prompts: int, judge_s: float, steps: int) -> dict[str, Any]:
    function = "late" if judge_s else "at_once"
    return {
        "recipe": "scale-point",
        "method": {"name": "grpo"},
        "model": {"name": str(folder / "model"), "device": "cpu", "dtype": "float32"},
        "data": {"train": str(folder / "prompts.jsonl")},
        "reward": {"kind": "python", "function": f"benchmarks.scale_points:{function}"},
        "optimizer": {"actor_lr": 1e-5},
        "steps": steps,
        "prompts_per_step": prompts,
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
        "scale-point", "smollm2-135m", 8, GROUP, NEW_TOKENS, device="cpu", dtype="float32", contestants=("ours",)
    )
    rows = prompt_rows(work, AutoTokenizer.from_pretrained(folder / "model"))
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def measured(folder: Path, prompts: int, judge_s: float, steps: int) -> dict[str, float]:
    """Median seconds of a step and of its phases, the first step left out; in this process."""
    from vigneron.methods import METHODS
    from vigneron.recipe import check_config
    from vigneron.timing import WHOLE, listening
    from vigneron.training.loop import train
    from vigneron.training.run import Run, Silent
    from vigneron.training.slots import Method, Parts

    def build(parts: Parts) -> Method:
        parts.policy.eos_ids = frozenset()  # lengths are forced
        return METHODS["grpo"](parts)

    config = check_config(recipe_of(folder, prompts, judge_s, steps + 1), "scale-point")
    with tempfile.TemporaryDirectory() as place:
        run = Run.start(config, Path(place), build, view=Silent())
        with listening() as watch:
            train(run, Silent())
        run.close()
    laps = watch.laps[1:]
    found = {name: statistics.median(lap.get(name, 0.0) for lap in laps) for name in (*PHASES, WHOLE)}
    return {name.replace(" ", "_"): round(value, 4) for name, value in found.items()}


def on_processes(folder: Path, processes: int, steps: int) -> float | None:
    """Median seconds of a step under `vigneron train --nproc`; None where it does not know that."""
    command = [sys.executable, "-m", "vigneron", "train"]
    if "--nproc" not in subprocess.run([*command, "--help"], capture_output=True, text=True, check=True).stdout:
        return None
    recipe = folder / "recipe.yaml"
    recipe.write_text(json.dumps(recipe_of(folder, RUNS["16 rows"][0], 0.0, steps + 1)))  # JSON is YAML too
    with tempfile.TemporaryDirectory() as runs:
        given = [str(recipe), "--nproc", str(processes), "--runs", runs, "--name", "run"]
        subprocess.run([*command, *given], check=True, capture_output=True)
        lines = (Path(runs) / "run" / "timings.jsonl").read_text().splitlines()
    return round(statistics.median(json.loads(line)["seconds"] for line in lines[1:]), 4)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale_points")
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "docs" / "scale-points.json")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measured(options.folder, *RUNS[options.one], options.steps)))
        return
    from benchmarks.measure import machine

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        prepare(folder)
        found: dict[str, Any] = {"machine": machine("cpu"), "judge_s": JUDGE_S, "runs": {}, "processes": {}}
        for name in RUNS:
            again = [sys.executable, "-m", "benchmarks.scale_points", "--one", name, "--folder", place]
            done = subprocess.run([*again, "--steps", str(options.steps)], capture_output=True, text=True, check=True)
            found["runs"][name] = json.loads(done.stdout.splitlines()[-1])
            print(name, found["runs"][name], flush=True)
        for processes in (1, 2):
            seconds = on_processes(folder, processes, options.steps)
            if seconds is not None:
                found["processes"][str(processes)] = seconds
    options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
