"""The overhead of sampling by one Ray actor over sampling in the process: seconds of a step, as a ratio, by phase.

python -m benchmarks.ray_overhead [--model NAME] [--prompts P] [--group G] [--tokens T] [--steps N] [--out FILE]

The same GRPO run twice on this machine, each in its own process: sampled here, and by one actor that shares the
GPU. By default 64 x 8 x 64 on a GPU, and a tiny model on a CPU, where it only shows that everything runs.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.comparison import table
from benchmarks.processes import start
from benchmarks.work import Work

PHASES = ("rollout", "put", "load", "sample", "gather", "reward", "advantage", "update", "keep samples")
"""Phases of a step, and those of its rollout as reported by the sampler."""
WARMUPS = {"cuda": 4, "cpu": 1}


def work_of(given: argparse.Namespace, device: str) -> Work:
    large = device == "cuda"
    return Work(
        "ray-overhead",
        "smollm2-135m",
        given.prompts or (64 if large else 4),
        given.group or (8 if large else 4),
        given.tokens or (64 if large else 16),
        device="cuda" if large else "cpu",
        dtype="bfloat16" if large else "float32",
        contestants=("ours",),
        warmups=WARMUPS[device],
        steps=given.steps,
    )


def scale_of(sampler: str, device: str) -> dict[str, Any]:
    """The actor gets a share of the training GPU, or all CPUs, as sampling in the process has."""
    if sampler == "here":
        return {}
    given = {"gpus": 0.5} if device == "cuda" else {"cpus": os.cpu_count()}
    return {"scale": {"sampling": {"kind": "ray", "actors": 1, **given}}}


class SamplerSeconds:
    """A view that records the sampler's timings of each step."""

    def __init__(self) -> None:
        self.laps: list[dict[str, float]] = []

    def notice(self, text: str) -> None: ...

    def step(self, run: Any, metrics: Any, batch: Any, seconds: float) -> None:
        self.laps.append(dict(getattr(run.policy.sampler, "seconds", {})))


def measure(work: Work, sampler: str, model: str | None) -> dict[str, Any]:
    """Runs in its own process. A step lasts from the end of one to the end of the next, logs included."""
    from benchmarks.models import llama_config, save_random_model
    from benchmarks.ours import started
    from vigneron.timing import WHOLE, recording_timings
    from vigneron.training import loop

    with tempfile.TemporaryDirectory() as place:
        folder = Path(model) if model is not None and Path(model).is_dir() else None
        if folder is None and work.device == "cpu":
            folder = Path(place) / "model"
            save_random_model(llama_config(2, 192), folder)
        view = SamplerSeconds()
        with started(work, folder, scale_of(sampler, work.device)) as run, recording_timings() as watch:
            loop.train(run, view)
    laps = [lap | sampled for lap, sampled in zip(watch.steps, view.laps, strict=True)][work.warmups :]
    middle = {name: statistics.median(lap[name] for lap in laps) for name in PHASES if all(name in lap for lap in laps)}
    seconds = [lap[WHOLE] for lap in laps]
    return {"seconds": statistics.median(seconds), "spread": [min(seconds), max(seconds)], **middle}


def shown(here: dict[str, Any], ray: dict[str, Any]) -> list[str]:
    rows = [
        (
            name,
            f"{found['seconds']:.4g}",
            "{:.4g}-{:.4g}".format(*found["spread"]),
            *(f"{found[part]:.4g}" if part in found else "-" for part in PHASES),
        )
        for name, found in (("here", here), ("one actor", ray))
    ]
    return [
        *table(("sampled by", "s/step", "fastest-slowest", *PHASES), rows),
        f"ratio ray-overhead/step {ray['seconds'] / here['seconds']:.3f}",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a model folder; default SmolLM2-135M, on a CPU a tiny random model")
    parser.add_argument("--prompts", type=int)
    parser.add_argument("--group", type=int)
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--sampler", choices=("here", "ray"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.steps < 1:
        parser.error("--steps: at least 1")

    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    work = work_of(given, device)
    if given.sampler is not None:
        given.out.write_text(json.dumps(measure(work, given.sampler, given.model)))
        return 0
    found = {}
    with tempfile.TemporaryDirectory() as place:
        for sampler in ("here", "ray"):
            path = Path(place) / f"{sampler}.json"
            sizes = {"model": given.model, "prompts": given.prompts, "group": given.group, "tokens": given.tokens}
            options = {key: value for key, value in sizes.items() if value is not None}
            running = start("ray_overhead", Path(place), sampler=sampler, steps=given.steps, out=path, **options)
            if (why := running.failure()) is not None:
                print(f"FAILED {sampler}: {why}")
                return 1
            found[sampler] = json.loads(path.read_text())
    from benchmarks.measure import machine

    work = replace(work, steps=given.steps)
    print(f"{work.prompts} x {work.group} x {work.new_tokens} on {machine(device)}", *shown(**found), sep="\n")
    if given.out is not None:
        given.out.write_text(json.dumps({"machine": machine(device), **found}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
