"""Tables and figure of `dense_study`: what its decision rule says, with paired intervals."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.dense_rule import (
    EVERYWHERE,
    Cell,
    against_law,
    crossing_point,
    decides,
    differ,
    law,
    matter,
    open_verdict,
    worth_it,
)
from benchmarks.dense_scores import CHANCE, LEVELS, SHAPES, hits
from benchmarks.paired import table
from benchmarks.study_settings import SEEDS, is_final
from benchmarks.study_store import Result, mean

ARMS = (*EVERYWHERE, "annealed", "tie-breaker")
EMBEDDED = ("cosine", "contrastive")
# Four arms in every cell, two at the crossing, four in the open task.
ALL_RUNS = (4 * len(LEVELS) * len(SHAPES) + 2 + 4) * len(SEEDS)

Scores = dict[Any, dict[int, list[float]]]
"""Values of each row, by seed, by what is compared."""


def opposites_scores(rows: Sequence[Result], name: str) -> Scores:
    found: Scores = defaultdict(dict)
    for one in rows:
        if one.get("part") == "opposites" and one["tuned"]:
            found[one["arm"], one["level"], one["samples"]][one["seed"]] = one["scores"][name]
    return dict(found)


def cells_of(rows: Sequence[Result]) -> list[Cell]:
    """All cells, with what is done of them."""
    area, last = (opposites_scores(rows, name) for name in ("area", "last"))
    p0 = {one["task"]: one for one in rows if one.get("part") == "p0"}

    def cell(level: int, samples: int) -> Cell:
        measured = p0.get(f"opposites-{level}")
        done = [arm for arm in ARMS if (arm, level, samples) in area]
        both = ({arm: scores[arm, level, samples] for arm in done} for scores in (area, last))
        return Cell(level, samples, hits(measured, samples) if measured else None, *both)

    return [cell(level, samples) for level in LEVELS for samples in SHAPES]


def show_p0(rows: Sequence[Result]) -> str:
    lines = [["task", "p₀ (95 %)", "prompts never hit", *(f"p₀ × {samples}" for samples in SHAPES)]]
    for one in rows:
        if one.get("part") == "p0":
            share = f"{one['p0']:.5f} ({one['low']:.5f} to {one['high']:.5f})"
            counts = [f"{hits(one, samples):.3g}" for samples in SHAPES]
            lines.append([one["task"], share, f"{one['never']:.2f}", *counts])
    return table(lines)


def show_opposites(rows: Sequence[Result]) -> str:
    cells = cells_of(rows)
    lines = [["k", "samples", "p₀ × samples", "arm", "seeds", "last", "area", "area − binary", "verdict"]]
    against = [["k", "samples", "arm", "area − token F1", "verdict"]]
    for cell in cells:
        place = [str(cell.level), str(cell.samples)]
        for arm, own in cell.area.items():
            numbers = [f"{mean([mean(v) for v in s.values()]):.3f}" for s in (cell.last[arm], own)]
            shown = ["–" if cell.hits is None else f"{cell.hits:.3g}", arm, str(len(own)), *numbers]
            if arm == "binary":
                lines.append([*place, *shown, "", ""])
            else:
                beside = cell.difference(arm, "binary")
                lines.append([*place, *shown, str(beside or ""), cell.verdict(arm, "binary")])
            beside = cell.difference(arm, "token-f1")
            if arm in EMBEDDED and beside is not None:
                against.append([*place, arm, str(beside), cell.verdict(arm, "token-f1")])
    laws = [["arm", "the law", "cells against it", "crossing at p₀ × samples"]]
    laws += [law_line(cells, arm) for arm in EVERYWHERE[1:]]
    embeddings = "; ".join(f"{arm}: {matter([cell.verdict(arm, 'token-f1') for cell in cells])}" for arm in EMBEDDED)
    return "\n\n".join([table(lines), table(laws), table(against), f"Do embeddings matter? {embeddings}."])


def law_line(cells: Sequence[Cell], arm: str) -> list[str]:
    """Rules 2 and 3."""
    by_hits = {cell.hits: cell for cell in cells if cell.hits is not None}
    if len(by_hits) < len(cells):
        return [arm, "not yet (p₀)", "", "not yet"]
    verdicts = {x: cell.verdict(arm, "binary") for x, cell in by_hits.items()}
    found = [by_hits[x] for x in against_law(verdicts)]
    against = ", ".join(f"k = {c.level} × {c.samples} ({c.hits:.2g}): {c.verdict(arm, 'binary')}" for c in found)
    known = {x: cell.difference(arm, "binary") for x, cell in by_hits.items() if decides(verdicts[x])}
    point = crossing_point({x: difference.mean for x, difference in known.items() if difference is not None})
    shown = "–" if point is None else f"{point:.2g}"
    return [arm, law(verdicts), against, shown if all(map(is_final, verdicts.values())) else "not yet"]


def open_scores(rows: Sequence[Result]) -> dict[str, Scores]:
    """Retrieval and preference, by arm and seed. A preference for texts of another rate or stop is left out."""
    judged: Result = next((one for one in rows if one.get("part") == "preference"), {"stops": {}, "preferred": {}})
    found: dict[str, Scores] = {"retrieval": defaultdict(dict), "preference": defaultdict(dict)}
    for one in rows:
        if one.get("part") == "open" and one["tuned"]:
            found["retrieval"][one["arm"]][one["seed"]] = one["scores"]["end"]
            same = judged["stops"].get(one["arm"]) == [one["rate"], one["steps"]]
            if same and one["job"] in judged["preferred"]:
                found["preference"][one["arm"]][one["seed"]] = judged["preferred"][one["job"]]
    return found


def show_open(rows: Sequence[Result]) -> str:
    found, others = open_scores(rows), ("binary", "sft")
    runs = [one for one in rows if one.get("part") == "open" and one["tuned"]]
    lines = [["arm", "rate, steps", *found, *(f"− {other}: {', '.join(found)}" for other in others), "worth it"]]
    for arm in found["retrieval"]:
        own = next(one for one in runs if one["arm"] == arm)
        values = [f"{mean([mean(v) for v in s[arm].values()]):.3f}" if s.get(arm) else "–" for s in found.values()]
        cells, verdicts = [], []
        for other in others:
            scores = [[s.get(name, {}) for s in found.values()] for name in (arm, other)]
            shown = "; ".join(str(differ(*pair) or "–") for pair in zip(*scores, strict=True))
            verdicts.append(open_verdict(*scores))
            cells.append(f"{shown}: {verdicts[-1]}" if arm != other else "–")
        lines.append([arm, f"{own['rate']:g}, {own['steps']}", *values, *cells])
        lines[-1].append(worth_it(*verdicts) if arm in EMBEDDED else "")
    accuracy = next((one["accuracy"] for one in rows if one.get("part") == "preference"), None)
    before = mean(runs[0]["scores"]["before"]) if runs else None
    notes = [f"Retrieval by chance: {CHANCE:.2f}, before training: {before:.3f}."] if before is not None else []
    notes += [f"The preference model ranks {accuracy:.2f} of the held-out pairs right."] if accuracy is not None else []
    return "\n\n".join([table(lines), " ".join(notes)]) if runs else "instructions: no arm is done yet"


def draw(rows: Sequence[Result], file: Path) -> None:
    """The curves of every cell, the difference to binary over p₀ × samples, and the open task. Dashed and hollow: not
    all seeds are done."""
    from matplotlib.figure import Figure

    from vigneron.report.figures import COLOURS, as_svg

    colours = {arm: COLOURS[at % len(COLOURS)] for at, arm in enumerate(ARMS)}
    figure = Figure(figsize=(14, 7), layout="constrained")
    opened = open_scores(rows)["retrieval"]
    cells = cells_of(rows)
    lines = [[f"{level}, {samples}" for level in LEVELS] for samples in SHAPES]
    axes = figure.subplot_mosaic([[*lines[0], "differences"], [*lines[1], "open" if opened else "differences"]])
    runs = [one for one in rows if one.get("part") in ("opposites", "open") and one["tuned"]]
    if len(runs) < ALL_RUNS:
        figure.suptitle(f"Partial: {len(runs)} of {ALL_RUNS} runs. Dashed and hollow: fewer than {len(SEEDS)} seeds")
    differences = axes["differences"]
    for cell in cells:
        axis = axes[f"{cell.level}, {cell.samples}"]
        for arm in cell.area:
            of_cell = {"part": "opposites", "arm": arm, "level": cell.level, "samples": cell.samples}
            curves = [one["curve"] for one in runs if of_cell.items() <= one.items()]
            steps = sorted(int(step) for step in curves[0])
            values = [mean([curve[str(step)] for curve in curves]) for step in steps]
            complete = len(curves) == len(SEEDS)
            axis.plot(steps, values, color=colours[arm], linestyle="-" if complete else "--")
            beside = cell.difference(arm, "binary")
            if arm != "binary" and beside is not None and cell.hits is not None:
                differences.errorbar(
                    cell.hits * 1.3 ** ARMS[1:].index(arm),  # beside each other
                    beside.mean,
                    [[beside.mean - beside.low], [beside.high - beside.mean]],
                    color=colours[arm],
                    marker="o",
                    markerfacecolor=colours[arm] if complete else "white",
                    capsize=3,
                )
        axis.set(title=f"k = {cell.level}, {cell.samples} samples a step", xlabel="step", ylim=(-0.02, 1.02))
        if cell.level == LEVELS[0]:
            axis.set_ylabel("held-out accuracy")
    differences.axhline(0, color="grey", linewidth=0.8)
    differences.axvline(1, color="grey", linewidth=0.8, linestyle=":")
    differences.set(xscale="log", xlabel="p₀ × samples (arms beside each other)", title="area − binary's, 95 %")
    for at, (arm, by_seed) in enumerate(opened.items()):
        axes["open"].bar(at, mean([mean(v) for v in by_seed.values()]), color=colours.get(arm, "grey"))
        axes["open"].plot([at] * len(by_seed), [mean(v) for v in by_seed.values()], "k.")
    if opened:
        axes["open"].set_xticks(range(len(opened)), list(opened))
        axes["open"].set(title="instructions: own answer nearest of 50")
    shown = [arm for arm in ARMS if any(arm in cell.area for cell in cells)]
    handles = [differences.plot([], [], color=colours[arm])[0] for arm in shown]
    figure.legend(handles, shown, loc="outside lower center", ncols=len(ARMS), frameon=False)
    file.write_text(as_svg(figure), encoding="utf-8")
