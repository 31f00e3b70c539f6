"""The study of docs/results/grape.md: GRAPE with revisions, GRAPE with fresh answers alone, GRPO on the summed score.

python -m benchmarks.grape_study plan QUEUE                  the list of its runs, for `python -m benchmarks.study work`
python -m benchmarks.grape_study show RUNS [--figure FILE]   its tables and figure; RUNS: a folder, or an archive

Compares the weighted sum of a category's scores on held-out questions, Σ ω τ, without confidences, which change the
reward of eq. 15.
"""

import argparse
import shlex
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.study import SEEDS
from vigneron.rubric.read import read_rubric
from vigneron.run_store.archive import unpacked
from vigneron.run_store.folder import RunFolder

CORRECTED = "method.correction=truncated"
ARMS: dict[str, tuple[str, ...]] = {
    "grape-study": (),
    "grape-study-corrected": (CORRECTED,),
    "grape-study-fresh": (),
    "grape-study-fresh-corrected": (CORRECTED,),
    "grpo-study": (),
}
"""Arms of the study, and their changes to the recipe."""
TRUTH: dict[str, tuple[str, ...]] = {
    "arithmetic": ("correct",),
    "antonyms": ("correct",),
    "json": ("right",),
    "explanations": ("like the written answer", "words of the written answer"),
}
"""The items that only a right answer satisfies; the others are form. The judged item of `explanations` is neither: its
judge cannot tell a right answer from an empty one."""
Records = Sequence[Mapping[str, Any]]


def plan(queue: Path) -> None:
    runs = [
        (f"{arm}-seed-{seed}", arm.removesuffix("-corrected"), f"seed={seed}", f"recipe={arm}", *changes)
        for seed in SEEDS
        for arm, changes in ARMS.items()
    ]
    queue.write_text("".join(shlex.join(run) + "\n" for run in runs), encoding="utf-8")
    print(f"{len(runs)} runs in {queue}")


def weights() -> dict[str, dict[str, float]]:
    """The weights of each category's items, normalized to sum to one."""
    found = {}
    for name, category in read_rubric("study").categories.items():
        total = sum(item.weight for item in category.items)
        found[name] = {item.name: item.weight / total for item in category.items}
    return found


def score(record: Mapping[str, Any], category: str, items: Mapping[str, float]) -> float:
    """Σ ω τ over the held-out questions of a category. A mean of sums is the sum of means: none is missing here."""
    return sum(weight * record[f"eval/reward/{category}/{item}/score"] for item, weight in items.items())


def arms_of(runs: Path) -> dict[str, list[Records]]:
    """Evaluations of finished runs, by recipe, in the order of their seeds."""
    found: dict[str, list[tuple[int, Records]]] = defaultdict(list)
    for path in sorted(p.parent for p in runs.glob("*/metrics.jsonl")):
        folder = RunFolder.open(path)
        config, records = folder.config(), folder.metrics()
        if records[-1]["step"] == config.steps:
            evaluated = [record for record in records if "eval/reward/score" in record]
            found[config.recipe].append((config.seed, evaluated))
        else:
            print(f"not finished: {path.name}", file=sys.stderr)
    return {arm: [records for _, records in sorted(found[arm], key=lambda r: r[0])] for arm in ARMS if arm in found}


def rows(arms: Mapping[str, Sequence[Records]]) -> Iterator[list[str]]:
    yield ["category", "before", *(f"{arm}, each seed" for arm in arms)]
    for category, items in weights().items():
        before = {f"{score(records[0], category, items):.2f}" for arm in arms.values() for records in arm}
        after = [" ".join(f"{score(r[-1], category, items):.2f}" for r in arm) for arm in arms.values()]
        yield [category, "/".join(sorted(before)), *after]


def item_rows(arms: Mapping[str, Sequence[Records]]) -> Iterator[list[str]]:
    """Each item: means over the seeds, before and after training."""
    yield ["category", "item", "before", *arms]
    for category, items in weights().items():
        for item in items:
            key = f"eval/reward/{category}/{item}/score"
            first = [records[0][key] for arm in arms.values() for records in arm]
            last = [f"{mean([records[-1][key] for records in arm]):.2f}" for arm in arms.values()]
            yield [category, item, f"{mean(first):.2f}", *last]


def truth_rows(arms: Mapping[str, Sequence[Records]]) -> Iterator[list[str]]:
    """Each category's truth items, weighted, before and after, and their share of the category's gain in Σ ω τ."""
    yield ["category", "before", *(f"{arm} (share of its gain)" for arm in arms)]
    for category, items in weights().items():
        true = {item: items[item] for item in TRUTH[category]}
        scale = 1 / sum(true.values())
        before = {f"{scale * score(records[0], category, true):.2f}" for arm in arms.values() for records in arm}
        cells = []
        for runs in arms.values():
            gain, of_truth = (
                mean([score(r[-1], category, some) - score(r[0], category, some) for r in runs])
                for some in (items, true)
            )
            after = mean([scale * score(r[-1], category, true) for r in runs])
            share = f"{of_truth / gain:.0%}" if gain > 0.05 else "no gain"
            cells.append(f"{after:.2f} ({share})")
        yield [category, "/".join(sorted(before)), *cells]


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def draw(arms: Mapping[str, Sequence[Records]], file: Path) -> None:
    from vigneron.report.figures import Panel, as_svg, comparison_figure

    panels = [Panel(f"{category} (held out, Σ ω τ)", category, measured=True) for category in weights()]
    scored = {
        arm: [
            [{"step": r["step"], **{c: score(r, c, items) for c, items in weights().items()}} for r in records]
            for records in runs
        ]
        for arm, runs in arms.items()
    }
    file.write_text(as_svg(comparison_figure(scored, panels=panels, columns=4)), encoding="utf-8")


def table(cells: Iterator[list[str]]) -> str:
    lines = [" | ".join(row) for row in cells]
    return "\n".join(f"| {line} |" for line in [lines[0], "|".join("---" for _ in lines[0].split(" | ")), *lines[1:]])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.grape_study", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("plan").add_argument("queue", type=Path)
    shown = verbs.add_parser("show")
    shown.add_argument("runs", type=Path)
    shown.add_argument("--figure", type=Path)
    given = parser.parse_args()
    if given.verb == "plan":
        plan(given.queue)
        return 0
    with unpacked(given.runs) as folder:
        arms = arms_of(folder)
    print(table(rows(arms)), "", table(truth_rows(arms)), "", table(item_rows(arms)), sep="\n")
    if given.figure is not None:
        draw(arms, given.figure)
    return 0


if __name__ == "__main__":
    sys.exit(main())
