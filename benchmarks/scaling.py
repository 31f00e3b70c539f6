"""Vigneron only: seconds and peak memory of a step against B, T, G and model size, changed one at a time.

python -m benchmarks.scaling [--steps N] [--only rows,tokens,group,model] [--out DIR] [--resume FILE --budget S]

Small on a CPU, larger on a GPU. Each point runs in its own process, so that peak memory is measured separately.
"""

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.arguments import make_folder
from benchmarks.comparison import table
from benchmarks.measure import GB, Measurement
from benchmarks.processes import Budget, start
from benchmarks.records import Records
from benchmarks.work import Work

AXES = ("rows", "tokens", "group", "model")
HEADER = ("axis", "at", "B", "G", "T", "parameters", "s/step", "samples/s", "tokens/s", "peak GB")


@dataclass(frozen=True)
class Size:
    """One point: P prompts, G samples each, T tokens, a Llama with the given number of layers and width."""

    prompts: int
    group: int
    new_tokens: int
    layers: int
    hidden: int

    def at(self, axis: str) -> str:
        """The point's value on its axis."""
        values = {"rows": self.prompts * self.group, "tokens": self.new_tokens, "group": self.group}
        return str(values.get(axis, f"{self.layers}x{self.hidden}"))


@dataclass(frozen=True)
class Point:
    size: Size
    parameters: int
    measurement: Measurement
    axis: str = ""

    def row(self) -> tuple[str, ...]:
        size, found = self.size, self.measurement
        numbers = (size.prompts * size.group, size.group, size.new_tokens)
        return (
            self.axis,
            size.at(self.axis),
            *(str(number) for number in numbers),
            f"{self.parameters / 1e6:.1f}M",
            f"{found.seconds:.4g}",
            f"{found.samples_per_s:.4g}",
            f"{found.tokens_per_s:.4g}",
            f"{found.peak_bytes / GB:.2f}",
        )


def sizes(device: str) -> dict[str, tuple[Size, ...]]:
    """The points of each axis. `group` splits the same number of samples differently."""
    if device == "cuda":
        middle = Size(prompts=64, group=8, new_tokens=64, layers=30, hidden=576)
        models = ((12, 576), (30, 576), (24, 1152))
        return _axes(middle, rows=(8, 64, 256), tokens=(16, 64, 256), groups=(2, 8, 32), models=models)
    middle = Size(prompts=2, group=4, new_tokens=16, layers=6, hidden=384)
    models = ((2, 192), (6, 384), (12, 576))
    return _axes(middle, rows=(1, 2, 4, 8), tokens=(4, 16, 64), groups=(2, 4, 8), models=models)


def _axes(
    middle: Size,
    *,
    rows: Sequence[int],
    tokens: Sequence[int],
    groups: Sequence[int],
    models: Sequence[tuple[int, int]],
) -> dict[str, tuple[Size, ...]]:
    """`rows` are numbers of prompts."""
    samples = middle.prompts * middle.group
    return {
        "rows": tuple(replace(middle, prompts=prompts) for prompts in rows),
        "tokens": tuple(replace(middle, new_tokens=t) for t in tokens),
        "group": tuple(replace(middle, group=g, prompts=samples // g) for g in groups),
        "model": tuple(replace(middle, layers=layers, hidden=hidden) for layers, hidden in models),
    }


def work_of(size: Size, device: str, steps: int) -> Work:
    return Work(
        "scaling",
        "smollm2-135m",
        size.prompts,
        size.group,
        size.new_tokens,
        device="cuda" if device == "cuda" else "cpu",
        dtype="bfloat16" if device == "cuda" else "float32",
        contestants=("ours",),
        warmups=2 if device == "cuda" else 1,
        steps=steps,
    )


def measure_point(size: Size, device: str, steps: int) -> Point:
    """Runs in the process of the point."""
    from safetensors import safe_open

    from benchmarks.models import llama_config, save_random_model
    from benchmarks.ours import measure

    with tempfile.TemporaryDirectory() as place:
        model = Path(place) / "model"
        save_random_model(llama_config(size.layers, size.hidden), model)
        with safe_open(model / "model.safetensors", "pt") as weights:  # tied ones are there once
            parameters = sum(math.prod(weights.get_slice(name).get_shape()) for name in weights.keys())  # noqa: SIM118
        return Point(size, parameters, measure(work_of(size, device, steps), model))


def point_of(kept: dict[str, Any]) -> Point:
    return Point(Size(**kept["size"]), kept["parameters"], Measurement.of(kept["measurement"]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--only", default=",".join(AXES), help="comma-separated axes")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks"))
    parser.add_argument("--resume", type=Path, help="file of results: append to it, and leave out what it has")
    parser.add_argument("--budget", type=float, default=float("inf"), help="time limit of all points in seconds")
    parser.add_argument("--point", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.steps < 1:
        parser.error("--steps: at least 1")

    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if given.point is not None:
        point = measure_point(Size(**json.loads(given.point)), device, given.steps)
        given.out.write_text(json.dumps(asdict(point)))
        return 0
    unknown = set(given.only.split(",")) - set(AXES)
    if unknown:
        parser.error(f"--only: no axis {', '.join(sorted(unknown))}; there are {', '.join(AXES)}")
    records, budget = Records(given.resume), Budget(all_s=given.budget)
    return run_all(given.only.split(","), device, given.steps, given.out, records, budget)


def run_all(axes: Sequence[str], device: str, steps: int, out: Path, records: Records, budget: Budget) -> int:
    from benchmarks.measure import machine
    from benchmarks.report import scaling_figure

    make_folder(out)
    requested = {axis: sizes(device)[axis] for axis in axes}
    # The axes share one size, which is measured once.
    wanted = dict.fromkeys(size for of_axis in requested.values() for size in of_axis)
    found = measure_all(wanted, device, steps, records, budget)
    points = [
        replace(found[size], axis=axis) for axis, of_axis in requested.items() for size in of_axis if size in found
    ]
    name = f"scaling-{device}"
    kept = {"machine": machine(device), "points": [asdict(point) for point in points]}
    (out / f"{name}.json").write_text(json.dumps(kept, indent=1))
    if points:
        scaling_figure(points, machine(device), out / f"{name}.svg")
        print(f"scaling on {machine(device)}", *table(HEADER, [point.row() for point in points]), sep="\n")
    return 0 if len(points) == sum(len(of_axis) for of_axis in requested.values()) else 1


def measure_all(
    requested: Iterable[Size], device: str, steps: int, records: Records, budget: Budget
) -> dict[Size, Point]:
    """Run each size in its own process; failures are printed and left out."""
    found: dict[Size, Point] = {}
    for size in requested:
        name = json.dumps(asdict(size))
        kept = records.get("point", device, name)
        if kept is None and not budget.spent:
            print(f"scaling: {size} …", file=sys.stderr, flush=True)
            with tempfile.TemporaryDirectory() as place:
                path = Path(place) / "point.json"
                why = start("scaling", Path(place), point=name, steps=steps, out=path).failure(budget.next_s)
                if why is not None:
                    print(f"FAILED {size}: {why}")
                    continue
                kept = json.loads(path.read_text())
                records.add("point", device, name, kept)
        if kept is not None:
            found[size] = point_of(kept)
    return found


if __name__ == "__main__":
    sys.exit(main())
