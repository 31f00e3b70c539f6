"""A figure for each experiment, from the archive of all records.

python -m benchmarks.emerging.figures docs/results/logs/emerging.tar.xz --out docs/results/emerging
"""

import argparse
import json
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.emerging.records import T_95, Record
from vigneron.report.figures import as_svg

Records = Sequence[Record]


def read(archive: Path) -> dict[str, list[Record]]:
    """The records of each file, by its name."""
    with tarfile.open(archive) as packed:
        return {
            Path(member.name).stem: [json.loads(line) for line in packed.extractfile(member) or ()]
            for member in packed.getmembers()
            if member.isfile() and "/" not in member.name.removeprefix("./")
        }


def centre_and_half(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half of the 95 % interval; 0 for one value."""
    half = T_95[len(values)] * stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return mean(values), half


def bars(axes: Axes, groups: dict[str, Records], figures: Sequence[str]) -> None:
    """A group of bars for each of `figures`, a bar for each name, with the interval over seeds."""
    width = 0.8 / len(groups)
    for place, (name, records) in enumerate(groups.items()):
        made = [centre_and_half([r[f] for r in records if r.get(f) is not None] or [0.0]) for f in figures]
        xs = [at + (place + 0.5) * width - 0.4 for at in range(len(figures))]
        axes.bar(xs, [m for m, _ in made], width, yerr=[h for _, h in made], label=name, capsize=2)
    axes.set_xticks(range(len(figures)), [f.replace("_", " ") for f in figures])
    axes.legend(fontsize=7, frameon=False, ncols=2)


def of_arms(records: Records, arms: Sequence[str]) -> dict[str, Records]:
    return {arm: [r for r in records if r["arm"] == arm] for arm in arms}


def curricula(axes: Axes, records: Records) -> None:
    arms = ("base", "shuffled", "balanced", "cosine", "gaussian", "classical", "hard_only")
    bars(axes, of_arms(records, arms), ("level_1", "level_2", "level_3", "level_4", "level_5", "mean"))
    axes.set(ylabel="held-out accuracy", ylim=(0, 1.25))


def rlaif(axes: Axes, records: Records) -> None:
    for kind, label in (("direct", "the labeller as reward"), ("model", "a reward model of its pairs")):
        made = [
            centre_and_half([r["accuracy"] for r in records if r["arm"] == f"{kind}-{noise}"])
            for noise in ("0", "0.2", "0.4")
        ]
        axes.errorbar((0, 0.2, 0.4), [m for m, _ in made], [h for _, h in made], marker="o", capsize=3, label=label)
    axes.axhline(next(r["accuracy"] for r in records if r["arm"] == "base"), color="grey", linestyle=":", label="base")
    axes.set(xlabel="share of flipped labels", ylabel="held-out accuracy", ylim=(0, 0.8))
    axes.legend(fontsize=7, frameon=False)


def process(axes: Axes, records: Records) -> None:
    arms = [("best_of", arm) for arm in ("mean of samples", "outcome", "process")]
    arms += [("active", arm) for arm in ("random 500", "random 2000", "active 2000")]
    arms += [("pspo", arm) for arm in ("min", "pspo", "pspo_released")]
    for place, (part, arm) in enumerate(arms):
        middle, half = centre_and_half([r["accuracy"] for r in records if (r["part"], r["arm"]) == (part, arm)])
        axes.bar(place, middle, yerr=half, capsize=2, color=f"C{[p for p, _ in arms[: place + 1]].index(part) // 3}")
    axes.set_xticks(range(len(arms)), [arm.replace("_", " ") for _, arm in arms], rotation=25, fontsize=7)
    axes.set(ylabel="held-out accuracy", ylim=(0, 0.8), title="best of eight | labelled solutions | GRPO by its reward")


def circular(axes: Axes, records: Records) -> None:
    (run, *_) = [r for r in records if r["arm"] == "sppo"]
    for word in ("rock", "paper", "scissors"):
        axes.plot(run[word][::4], label=word)
    axes.axhline(1 / 3, color="grey", linestyle=":")
    axes.set_xticks(range(0, 101, 25), [str(4 * at) for at in range(0, 101, 25)])
    axes.set(xlabel="step", ylabel="share of samples", ylim=(0, 1), title="SPPO, seed 0")
    axes.legend(fontsize=7, frameon=False, ncols=3)


def offline(axes: Axes, records: Records) -> None:
    arms = ("base", "rejection", "topr", "oreo", "a_star_po", "dpo", "reinforce")
    bars(axes, of_arms(records, arms), ("accuracy", "sampled_accuracy"))
    axes.set(ylabel="held-out accuracy", ylim=(0, 0.85))
    axes.set_xticks((0, 1), ("greedy", "temperature 1"))


def diversity(axes: Axes, records: Records) -> None:
    bars(axes, of_arms(records, ("sft", "flower", "grpo")), ("answers",))
    axes.set(ylabel="equally likely right answers, of 8", ylim=(0, 10))


DRAWN: dict[str, Callable[[Axes, Any], None]] = {
    "curricula": curricula,
    "rlaif": rlaif,
    "process": process,
    "circular": circular,
    "offline": offline,
    "diversity": diversity,
}


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archive", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(given)
    options.out.mkdir(parents=True, exist_ok=True)
    records = read(options.archive)
    for name, draw in DRAWN.items():
        figure = Figure(figsize=(6, 3), layout="constrained")
        draw(figure.subplots(), records[name])
        with matplotlib.rc_context({"svg.fonttype": "none"}):
            (options.out / f"{name}.svg").write_text(as_svg(figure) + "\n")


if __name__ == "__main__":
    main()
