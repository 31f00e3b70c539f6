"""Tables and figure of `dense_study`: its decision rule, with paired intervals."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.dense_scores import CHANCE, LEVELS, SHAPES, hits
from benchmarks.paired import Difference, paired_difference, table
from benchmarks.study_store import Result, mean

ARMS = ("binary", "cosine", "contrastive", "token-f1", "annealed", "tie-breaker")
# Rule 1: the least difference, and the least accuracy of a cell that says something.
PAYS, SAYS_SOMETHING = 0.05, 0.05

Scores = dict[Any, dict[int, list[float]]]
"""Values of each row, by seed, by what is compared."""


def verdict(difference: Difference) -> str:
    """Rule 1."""
    if difference.mean >= PAYS and difference.low > 0:
        return "pays"
    if difference.mean <= -PAYS and difference.high < 0:
        return "costs"
    return "no difference"


def differ(one: Mapping[int, Sequence[float]], other: Mapping[int, Sequence[float]]) -> Difference | None:
    """Over the seeds that both have; None: none."""
    seeds = sorted(set(one) & set(other))
    return paired_difference([one[seed] for seed in seeds], [other[seed] for seed in seeds]) if seeds else None


def law(verdicts: Mapping[float, str]) -> str:
    """Rule 2, from the verdicts of the cells that say something, by p₀ × samples."""
    below, above = [v for x, v in verdicts.items() if x < 0.5], [v for x, v in verdicts.items() if x > 2]
    if not below or not above:
        return "not tested"
    return "holds" if set(below) == {"pays"} and "pays" not in above else "fails"


def crossing_point(differences: Mapping[float, float]) -> float | None:
    """Rule 3: the first p₀ × samples, from below, where the difference falls to 0."""
    cells = sorted(differences.items())
    for (x, before), (next_x, after) in pairwise(cells):
        if before > 0 >= after:
            share = before / (before - after)
            return 10 ** (math.log10(x) + share * (math.log10(next_x) - math.log10(x)))
    return None


def matter(verdicts: Sequence[str]) -> str:
    """Rule 4, from an arm's verdicts against token F1."""
    return "they matter" if verdicts.count("pays") > verdicts.count("costs") else "they do not matter"


def open_verdict(differences: Sequence[Difference | None]) -> str:
    """Rule 5, from the differences of both scores."""
    known = [one for one in differences if one is not None]
    if len(known) < 2:
        return "–"
    if all(one.low > 0 for one in known):
        return "better"
    return "worse" if all(one.high < 0 for one in known) else "neither"


def opposites_scores(rows: Sequence[Result], name: str) -> Scores:
    found: Scores = defaultdict(dict)
    for one in rows:
        if one.get("part") == "opposites" and one["tuned"]:
            found[one["arm"], one["level"], one["samples"]][one["seed"]] = one["scores"][name]
    return dict(found)


def show_p0(rows: Sequence[Result]) -> str:
    lines = [["task", "p₀ (95 %)", "prompts never hit", *(f"p₀ × {samples}" for samples in SHAPES)]]
    for one in rows:
        if one.get("part") == "p0":
            share = f"{one['p0']:.5f} ({one['low']:.5f} to {one['high']:.5f})"
            counts = [f"{hits(one, samples):.3g}" for samples in SHAPES]
            lines.append([one["task"], share, f"{one['never']:.2f}", *counts])
    return table(lines)


def show_opposites(rows: Sequence[Result]) -> str:
    area, last = (opposites_scores(rows, name) for name in ("area", "last"))
    p0 = {one["task"]: one for one in rows if one.get("part") == "p0"}
    lines = [["k", "samples", "p₀ × samples", "arm", "seeds", "last", "area", "area − binary", "verdict"]]
    against = [["k", "samples", "arm", "area − token F1", "verdict"]]
    verdicts: dict[str, dict[float, str]] = defaultdict(dict)
    means: dict[str, dict[float, float]] = defaultdict(dict)
    for level in LEVELS:
        for samples in SHAPES:
            here = {arm: area[arm, k, n] for arm, k, n in area if (k, n) == (level, samples)}
            if not here:
                continue
            measured = p0.get(f"opposites-{level}")
            x = hits(measured, samples) if measured else math.nan
            top = max(mean([mean(v) for v in last[arm, level, samples].values()]) for arm in here)
            for arm, own in here.items():
                found = differ(own, here["binary"]) if arm != "binary" and "binary" in here else None
                says = "" if found is None else verdict(found) if top >= SAYS_SOMETHING else "nothing is learned"
                numbers = [f"{mean([mean(v) for v in s.values()]):.3f}" for s in (last[arm, level, samples], own)]
                lines.append(
                    [str(level), str(samples), f"{x:.3g}", arm, str(len(own)), *numbers, str(found or ""), says]
                )
                if found is not None and top >= SAYS_SOMETHING and x == x:
                    verdicts[arm][x], means[arm][x] = verdict(found), found.mean
                if arm in ("cosine", "contrastive") and "token-f1" in here:
                    beside = differ(own, here["token-f1"])
                    says = "" if beside is None else verdict(beside)
                    against.append([str(level), str(samples), arm, str(beside or ""), says])
    laws = [["arm", "the law", "crossing at p₀ × samples"]]
    for arm in verdicts:
        point = crossing_point(means[arm])
        laws.append([arm, law(verdicts[arm]), "–" if point is None else f"{point:.2g}"])
    found_by = {arm: [row[4] for row in against[1:] if row[2] == arm] for arm in ("cosine", "contrastive")}
    embeddings = [f"{arm}: {matter(verdicts)}" for arm, verdicts in found_by.items() if verdicts]
    asked = f"Do embeddings matter? {'; '.join(embeddings) or 'not tested'}."
    return "\n\n".join([table(lines), table(laws), table(against), asked])


def open_scores(rows: Sequence[Result]) -> dict[str, Scores]:
    """Retrieval and preference, by arm and seed."""
    preferred: dict[str, list[float]] = next((one["preferred"] for one in rows if one.get("part") == "preference"), {})
    found: dict[str, Scores] = {"retrieval": defaultdict(dict), "preference": defaultdict(dict)}
    for one in rows:
        if one.get("part") == "open" and one["tuned"]:
            found["retrieval"][one["arm"]][one["seed"]] = one["scores"]["end"]
            if one["job"] in preferred:
                found["preference"][one["arm"]][one["seed"]] = preferred[one["job"]]
    return found


def show_open(rows: Sequence[Result]) -> str:
    found, others = open_scores(rows), ("binary", "sft")
    runs = [one for one in rows if one.get("part") == "open" and one["tuned"]]
    lines = [["arm", "rate, steps", *found, *(f"− {other}: {', '.join(found)}" for other in others)]]
    for arm in found["retrieval"]:
        own = next(one for one in runs if one["arm"] == arm)
        values = [f"{mean([mean(v) for v in s[arm].values()]):.3f}" if s.get(arm) else "–" for s in found.values()]
        cells = []
        for other in others:
            both = [differ(s[arm], s[other]) if s.get(arm) and s.get(other) else None for s in found.values()]
            shown = "; ".join(str(one) if one is not None else "–" for one in both)
            cells.append(f"{shown}: {open_verdict(both)}" if arm != other else "–")
        lines.append([arm, f"{own['rate']:g}, {own['steps']}", *values, *cells])
    accuracy = next((one["accuracy"] for one in rows if one.get("part") == "preference"), None)
    before = mean(runs[0]["scores"]["before"]) if runs else None
    notes = [f"Retrieval by chance: {CHANCE:.2f}, before training: {before:.3f}."] if before is not None else []
    notes += [f"The preference model ranks {accuracy:.2f} of the held-out pairs right."] if accuracy is not None else []
    return "\n\n".join([table(lines), " ".join(notes)])


def draw(rows: Sequence[Result], file: Path) -> None:
    """The curves of every cell, and the difference to binary over p₀ × samples."""
    from matplotlib.figure import Figure

    from vigneron.report.figures import COLOURS, as_svg

    colours = {arm: COLOURS[at % len(COLOURS)] for at, arm in enumerate(ARMS)}
    figure = Figure(figsize=(14, 7), layout="constrained")
    axes = figure.subplots(2, 4)
    runs = [one for one in rows if one.get("part") == "opposites" and one["tuned"]]
    for place, level in enumerate(LEVELS):
        for line, samples in enumerate(SHAPES):
            axis = axes[line][place]
            for arm in ARMS:
                curves = [o["curve"] for o in runs if (o["arm"], o["level"], o["samples"]) == (arm, level, samples)]
                if curves:
                    steps = sorted(int(step) for step in curves[0])
                    values = [mean([curve[str(step)] for curve in curves]) for step in steps]
                    axis.plot(steps, values, color=colours[arm], label=arm)
            axis.set(title=f"k = {level}, {samples} samples a step", xlabel="step", ylim=(-0.02, 1.02))
    area = opposites_scores(rows, "area")
    p0 = {one["task"]: one for one in rows if one.get("part") == "p0"}
    for arm in ARMS[1:]:
        points = []
        for level in LEVELS:
            for samples in SHAPES:
                own, binary = area.get((arm, level, samples)), area.get(("binary", level, samples))
                found = differ(own, binary) if own and binary else None
                if found is not None and f"opposites-{level}" in p0:
                    points.append((hits(p0[f"opposites-{level}"], samples), found))
        points.sort(key=lambda point: point[0])
        if points:
            ranges = [[d.mean - d.low for _, d in points], [d.high - d.mean for _, d in points]]
            axes[0][3].errorbar(
                [x for x, _ in points], [d.mean for _, d in points], ranges, color=colours[arm], marker="o", capsize=3
            )
    axes[0][3].axhline(0, color="grey", linewidth=0.8)
    axes[0][3].axvline(1, color="grey", linewidth=0.8, linestyle=":")
    axes[0][3].set(xscale="log", xlabel="p₀ × samples", title="area − binary's, 95 %")
    opened = open_scores(rows)["retrieval"]
    for at, by_seed in enumerate(opened.values()):
        axes[1][3].bar(at, mean([mean(v) for v in by_seed.values()]), color=COLOURS[at % len(COLOURS)])
        axes[1][3].plot([at] * len(by_seed), [mean(v) for v in by_seed.values()], "k.")
    axes[1][3].set_xticks(range(len(opened)), list(opened))
    axes[1][3].set(title="instructions: own answer nearest of 50")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(ARMS), frameon=False)
    file.write_text(as_svg(figure), encoding="utf-8")
