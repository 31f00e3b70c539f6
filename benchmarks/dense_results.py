"""Tables and figure of `dense_study`: what its decision rule says, with paired intervals."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.dense_rule import (
    EVERYWHERE,
    PAYS,
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
from benchmarks.dense_scores import CHANCE, LEVELS, OPEN_SAMPLES, SHAPES, best_stop, hits
from benchmarks.paired import Difference, table
from benchmarks.study_settings import SEEDS, chosen_label, is_final
from benchmarks.study_store import Result, mean

ARMS = (*EVERYWHERE, "annealed", "tie-breaker")
EMBEDDED = ("cosine", "contrastive")
OPEN_ARMS = ("binary", *EMBEDDED, "sft")
NAMES = {"token-f1": "token F1", "sft": "SFT"}
"""Arms that tables and figure write otherwise."""
# Four arms in every cell, two at the crossing, four in the open task.
ALL_RUNS = (4 * len(LEVELS) * len(SHAPES) + 2 + 4) * len(SEEDS)

Scores = dict[Any, dict[int, list[float]]]
"""Values of each row, by seed, by what is compared."""


def named(arm: str) -> str:
    return NAMES.get(arm, arm)


def written(difference: Difference | None) -> str:
    return "–" if difference is None else str(difference).replace("-", "−")


def count(value: float) -> str:
    """Hits in a step."""
    return f"{value:.2g}" if value < 0.01 else f"{value:.3g}"


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
    lines = [["task", "hits", "p₀ (95 %)", "prompts never hit", "p₀ × samples a step"]]
    for one in sorted((one for one in rows if one.get("part") == "p0"), key=lambda one: -one["p0"]):
        digits = 3 if one["p0"] >= 0.1 else 4 if one["p0"] >= 0.01 else 5
        share = f"{one['p0']:.{digits}f} ({one['low']:.{digits}f} to {one['high']:.{digits}f})"
        task, _, level = one["task"].partition("-")
        sizes = SHAPES if level else (OPEN_SAMPLES,)
        counts = "; ".join(f"{count(hits(one, samples))} of {samples}" for samples in sizes)
        place = f"{task}, k = {level}" if level else task
        lines.append([place, f"{one['hits']:,} of {one['drawn']:,}", share, f"{one['never']:.3f}", counts])
    return table(lines)


def show_tuning(rows: Sequence[Result]) -> str:
    """The `area` of the tuning runs at k = 2; a row's largest, whose rate the arm has, is bold."""
    tried: dict[tuple[int, str], dict[float, str]] = defaultdict(dict)
    chosen = {}
    for one in rows:
        if one.get("part") == "opposites" and not one["tuned"]:
            tried[one["samples"], one["arm"]][one["rate"]] = f"{one['area']:.3f}"
    for key in tried:
        own = [one for one in rows if one.get("part") == "opposites" and (one["samples"], one["arm"]) == key]
        chosen[key] = chosen_label([one for one in own if not one["tuned"]])["rate"]
    order = sorted(tried, key=lambda key: (key[0], ARMS.index(key[1])))
    return _by_rate({f"{named(arm)}, {n}": (tried[n, arm], chosen[n, arm]) for n, arm in order}, "arm, samples a step")


def show_open_tuning(rows: Sequence[Result]) -> str:
    """The best retrieval of the open task's tuning runs, and its step; bold: what the arm has."""
    tried: dict[str, list[Result]] = defaultdict(list)
    for one in rows:
        if one.get("part") == "open" and not one["tuned"]:
            tried[one["arm"]].append(one)
    cells = {}
    for arm in (arm for arm in OPEN_ARMS if arm in tried):
        best = {one["rate"]: best_stop(one) for one in tried[arm]}
        chosen = min((-value, step, rate) for rate, (value, step) in best.items())[-1]
        cells[named(arm)] = ({rate: f"{value:.3f} ({step})" for rate, (value, step) in best.items()}, chosen)
    return _by_rate(cells, "arm") if cells else "instructions: nothing is tuned yet"


def _by_rate(cells: Mapping[str, tuple[Mapping[float, str], float | None]], head: str) -> str:
    rates = sorted({rate for by_rate, _ in cells.values() for rate in by_rate})
    lines = [[head, *(f"{rate:.0e}".replace("e-0", "e-") for rate in rates)]]
    for name, (by_rate, chosen) in cells.items():
        values = (by_rate.get(rate, "–") for rate in rates)
        shown = (f"**{value}**" if rate == chosen else value for rate, value in zip(rates, values, strict=True))
        lines.append([name, *shown])
    return table(lines)


def show_opposites(rows: Sequence[Result]) -> str:
    cells = cells_of(rows)
    lines = [["k", "samples a step", "p₀ × samples", "arm", "seeds", "last", "area", "area − binary", "verdict"]]
    against = [["k", "samples a step", "arm", "area − token F1", "verdict"]]
    for cell in cells:
        place = [str(cell.level), str(cell.samples)]
        for arm, own in cell.area.items():
            numbers = [f"{mean([mean(v) for v in s.values()]):.3f}" for s in (cell.last[arm], own)]
            shown = ["–" if cell.hits is None else count(cell.hits), named(arm), str(len(own)), *numbers]
            if arm == "binary":
                lines.append([*place, *shown, "", ""])
            else:
                beside = written(cell.difference(arm, "binary"))
                lines.append([*place, *shown, beside, cell.verdict(arm, "binary")])
            difference = cell.difference(arm, "token-f1")
            if arm in EMBEDDED and difference is not None:
                against.append([*place, arm, written(difference), cell.verdict(arm, "token-f1")])
    laws = [["arm", "the law (rule 2)", "cells against it", "crossing at p₀ × samples (rule 3)"]]
    laws += [law_line(cells, arm) for arm in EVERYWHERE[1:]]
    embeddings = "; ".join(f"{arm}: {matter([cell.verdict(arm, 'token-f1') for cell in cells])}" for arm in EMBEDDED)
    return "\n\n".join([table(lines), table(laws), table(against), f"Do embeddings matter? {embeddings}."])


def law_line(cells: Sequence[Cell], arm: str) -> list[str]:
    """Rules 2 and 3."""
    by_hits = {cell.hits: cell for cell in cells if cell.hits is not None}
    if len(by_hits) < len(cells):
        return [named(arm), "not yet (p₀)", "", "not yet"]
    verdicts = {x: cell.verdict(arm, "binary") for x, cell in by_hits.items()}
    found = [by_hits[x] for x in against_law(verdicts)]
    against = "; ".join(f"k = {c.level} × {c.samples} ({c.hits:.2g}): {c.verdict(arm, 'binary')}" for c in found)
    known = {x: cell.difference(arm, "binary") for x, cell in by_hits.items() if decides(verdicts[x])}
    point = crossing_point({x: difference.mean for x, difference in known.items() if difference is not None})
    shown = "–" if point is None else f"{point:.2g}"
    return [named(arm), law(verdicts), against, shown if all(map(is_final, verdicts.values())) else "not yet"]


def open_scores(rows: Sequence[Result]) -> dict[str, Scores]:
    """Retrieval and preference, by arm and seed. A preference for texts of another rate or stop is left out."""
    judged: Result = next((one for one in rows if one.get("part") == "preference"), {"stops": {}, "preferred": {}})
    found: dict[str, Scores] = {"retrieval": defaultdict(dict), "preference": defaultdict(dict)}
    runs = [one for one in rows if one.get("part") == "open" and one["tuned"]]
    for one in sorted(runs, key=lambda one: (OPEN_ARMS.index(one["arm"]), one["seed"])):
        found["retrieval"][one["arm"]][one["seed"]] = one["scores"]["end"]
        same = judged["stops"].get(one["arm"]) == [one["rate"], one["steps"]]
        if same and one["job"] in judged["preferred"]:
            found["preference"][one["arm"]][one["seed"]] = judged["preferred"][one["job"]]
    return found


def show_open(rows: Sequence[Result]) -> str:
    found = open_scores(rows)
    runs = [one for one in rows if one.get("part") == "open" and one["tuned"]]
    if not runs:
        return "instructions: no arm is done yet"
    lines = [["arm", "rate, steps", *(head for score in found for head in (score, "by seed"))]]
    differences = [["arm", "against", *found, "verdict (rule 5)"]]
    verdicts: dict[tuple[str, str], str] = {}
    for arm in found["retrieval"]:
        own = next(one for one in runs if one["arm"] == arm)
        values = []
        for by_arm in found.values():
            seeds = [mean(of_rows) for of_rows in by_arm.get(arm, {}).values()]
            values += [f"{mean(seeds):.3f}", ", ".join(f"{value:.2f}" for value in seeds)] if seeds else ["–", "–"]
        lines.append([named(arm), f"{own['rate']:.0e}, {own['steps']}".replace("e-0", "e-"), *values])
        for other in ("binary", "sft"):
            if other not in found["retrieval"] or arm in ("binary", other):
                continue
            scores = [[by_arm.get(name, {}) for by_arm in found.values()] for name in (arm, other)]
            verdicts[arm, other] = open_verdict(*scores)
            shown = [written(differ(*pair)) for pair in zip(*scores, strict=True)]
            differences.append([named(arm), named(other), *shown, verdicts[arm, other]])
    worth = {
        arm: worth_it(*(verdicts[arm, other] for other in ("binary", "sft")))
        for arm in EMBEDDED
        if (arm, "sft") in verdicts and (arm, "binary") in verdicts
    }
    notes = [f"Retrieval by chance: {CHANCE:.2f}, before training: {mean(runs[0]['scores']['before']):.3f}."]
    accuracy = next((one["accuracy"] for one in rows if one.get("part") == "preference"), None)
    notes += [f"The preference model ranks {accuracy:.2f} of the held-out pairs right."] if accuracy is not None else []
    notes += [f"Worth it? {'; '.join(f'{arm}: {says}' for arm, says in worth.items())}."] if worth else []
    return "\n\n".join([table(lines), table(differences), " ".join(notes)])


def draw(rows: Sequence[Result], file: Path) -> None:
    """The curves of every cell, the difference to binary by p₀ × samples, and the open task's two scores. Thin lines
    and dots are seeds. Dashed and hollow: not all seeds are done."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from vigneron.report.figures import COLOURS, as_svg

    colours = dict(zip((*ARMS, "sft"), (*COLOURS, "#555555"), strict=True))
    figure = Figure(figsize=(14, 7.4), layout="constrained")
    opened = open_scores(rows)
    shapes = [[f"{level}, {samples}" for level in LEVELS] for samples in SHAPES]
    last = "open" if opened["retrieval"] else "differences"
    axes = figure.subplot_mosaic([[*shapes[0], "differences"], [*shapes[1], last]], width_ratios=[1, 1, 1, 2.1])
    runs = [one for one in rows if one.get("part") in ("opposites", "open") and one["tuned"]]
    if len(runs) < ALL_RUNS:
        figure.suptitle(f"Partial: {len(runs)} of {ALL_RUNS} runs. Dashed and hollow: fewer than {len(SEEDS)} seeds")
    cells = cells_of(rows)
    for cell in cells:
        _draw_cell(axes[f"{cell.level}, {cell.samples}"], cell, runs, colours)
    _draw_differences(axes["differences"], cells, colours)
    if opened["retrieval"]:
        _draw_open(axes["open"], opened, colours)
    shown = [arm for arm in ARMS if any(arm in cell.area for cell in cells)]
    shown += ["sft"] if "sft" in opened["retrieval"] else []
    handles = [axes["differences"].plot([], [], color=colours[arm], linewidth=2)[0] for arm in shown]
    labels = [named(arm) for arm in shown]
    figure.legend(handles, labels, loc="outside lower center", ncols=len(shown), frameon=False)
    with rc_context({"svg.fonttype": "none"}):  # letters as text, not as paths: a quarter fewer bytes
        file.write_text(as_svg(figure), encoding="utf-8")


def _draw_cell(axis: Any, cell: Cell, runs: Sequence[Result], colours: Mapping[str, str]) -> None:
    for arm in cell.area:
        of_cell = {"part": "opposites", "arm": arm, "level": cell.level, "samples": cell.samples}
        curves = [one["curve"] for one in runs if of_cell.items() <= one.items()]
        steps = sorted(int(step) for step in curves[0])
        for curve in curves:
            axis.plot(steps, [curve[str(step)] for step in steps], color=colours[arm], linewidth=0.7, alpha=0.4)
        means = [mean([curve[str(step)] for curve in curves]) for step in steps]
        axis.plot(steps, means, color=colours[arm], linewidth=1.8, linestyle=_line(curves))
    axis.set(title=f"k = {cell.level}, {cell.samples} samples a step", ylim=(-0.02, 0.9), xticks=range(0, 151, 50))
    if cell.level == LEVELS[0]:
        axis.set_ylabel("held-out accuracy")
    if cell.samples == max(SHAPES):
        axis.set_xlabel("step")


def _line(seeds: Collection[object]) -> str:
    return "-" if len(seeds) == len(SEEDS) else "--"


def _draw_differences(axis: Any, cells: Sequence[Cell], colours: Mapping[str, str]) -> None:
    """Cells in the order of p₀ × samples, with equal room for each."""
    known = sorted((cell.hits, cell.level, cell) for cell in cells if cell.hits is not None)
    axis.axhline(0, color="grey", linewidth=0.8)
    axis.axhspan(-PAYS, PAYS, color="grey", alpha=0.12, linewidth=0)
    for at, (_, _, cell) in enumerate(known):
        arms = [arm for arm in ARMS[1:] if cell.difference(arm, "binary") is not None]
        for beside, arm in enumerate(arms):
            found = cell.difference(arm, "binary")
            assert found is not None
            full = _line(cell.area[arm]) == "-"
            axis.errorbar(
                at + 0.14 * (beside - (len(arms) - 1) / 2),
                found.mean,
                [[found.mean - found.low], [found.high - found.mean]],
                color=colours[arm],
                marker="o",
                markersize=5,
                markerfacecolor=colours[arm] if full else "white",
                capsize=2.5,
            )
    below = sum(value < 1 for value, _, _ in known)
    axis.axvline(below - 0.5, color="grey", linewidth=0.8, linestyle=":")
    labels = [f"{count(value)}\nk = {cell.level} × {cell.samples}" for value, _, cell in known]
    axis.set_xticks(range(len(known)), labels, fontsize=8.5)
    axis.set(
        title="area − binary's, 95 % (band: ±0.05; dotted: one hit a step)",
        xlabel="p₀ × samples",
        xlim=(-0.5, max(len(known), 1) - 0.5),
    )


def _draw_open(axis: Any, opened: Mapping[str, Scores], colours: Mapping[str, str]) -> None:
    for group, by_arm in enumerate(opened.values()):
        for beside, (arm, by_seed) in enumerate(by_arm.items()):
            at = group + 0.2 * (beside - (len(by_arm) - 1) / 2)
            seeds = [mean(values) for values in by_seed.values()]
            axis.bar(at, mean(seeds), width=0.17, color=colours[arm], alpha=0.6, linewidth=0)
            axis.plot([at + 0.02 * (n - 1.5) for n in range(len(seeds))], seeds, "k.", markersize=5)
    labels = {
        "retrieval": "own answer nearest of 50\n(retrieval)",
        "preference": "over the untrained model\n(preference)",
    }
    axis.set_xticks(range(len(opened)), [labels[score] for score in opened])
    axis.set(title="instructions, at the chosen step (dots: seeds)", ylim=(0, 1.05))
