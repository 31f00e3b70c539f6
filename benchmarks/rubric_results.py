"""Tables and figure of `rubric_study`: its decision rule, with paired intervals. A verdict is given when no run that is
missing could change it; until then, "not yet"."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.paired import Difference, paired_difference, table
from benchmarks.study_settings import SEEDS, not_yet
from benchmarks.study_store import Result, mean

HIDDEN = ("codeword", "order", "units", "note")
STATED = ("arithmetic", "antonyms", "json", "explanations")
GRADED = ("explanations",)
"""Scored by degree: no answer is the right one."""
KINDS = {"form hidden": HIDDEN, "form stated": STATED}
BASELINES = ("grpo", "rejection")
ARMS = ("grpo", "rejection", "grape-paper", "grape-on-policy", "grape-topr", "grape-failures")
ASKED = {"bare": "without the prompt", "prompted": "with it", "revised": "revising a wrong answer"}
RIGHT = "inverse variance"
"""The right weights."""
MARKERS = ("o-", "s-", "v--", "x--", "D-", "^:")
"""Of the arms: lines that lie on each other can be told apart."""
REVISED_FROM = 51
"""The first step with revisions: a question comes again."""
SHOWN_STEPS = (0, 20, 40, 60, 100, 200)
# Rules 1 and 2.
BEATS_BY, LOSES_BY = 0.05, 0.02

Values = dict[int, dict[str, list[float]]]
"""Of an arm: the rows' scores of each category, by seed."""


def category_values(rows: Sequence[Result], name: str = "last") -> dict[str, Values]:
    found: dict[str, Values] = defaultdict(dict)
    for one in rows:
        if one.get("part") == "categories" and one["tuned"]:
            values: dict[str, list[float]] = defaultdict(list)
            for value, category in zip(one["scores"][name], one["categories"], strict=True):
                values[category].append(value)
            found[one["arm"]][one["seed"]] = values
    return {arm: found[arm] for arm in ARMS if arm in found}


def differ(one: Values, other: Values, categories: Sequence[str]) -> Difference | None:
    """Over the rows of these categories, and the seeds that both have."""
    seeds = sorted(set(one) & set(other))
    if not seeds:
        return None
    pooled = [[[v for c in categories for v in arm[seed][c]] for seed in seeds] for arm in (one, other)]
    return paired_difference(*pooled)


def worth_it(against: Mapping[str, Difference]) -> bool:
    """Rule 1: both lower bounds are at least 0.05."""
    return set(against) == set(BASELINES) and all(one.low >= BEATS_BY for one in against.values())


def loses(against: Mapping[str, Difference]) -> bool:
    """Rule 1: worse than one of the two by more than 0.02, and not by chance alone."""
    return any(one.mean < -LOSES_BY and one.high < 0 for one in against.values())


def compare(values: Mapping[str, Values], arm: str, categories: Sequence[str]) -> dict[str, Difference]:
    found = {base: differ(values[arm], values[base], categories) for base in BASELINES if base in values}
    return {base: one for base, one in found.items() if one is not None}


def common_seeds(values: Mapping[str, Values], *arms: str) -> int:
    return len(set.intersection(*(set(values.get(arm, {})) for arm in arms)))


def finished(values: Mapping[str, Values], arm: str, categories: Sequence[str]) -> dict[str, Difference]:
    """The differences that have all seeds."""
    found = compare(values, arm, categories)
    return {base: one for base, one in found.items() if common_seeds(values, arm, base) == len(SEEDS)}


def category_verdict(values: Mapping[str, Values], arm: str, category: str) -> str:
    """Rule 1. One baseline is enough to lose."""
    against = finished(values, arm, [category])
    if loses(against):
        return "loses"
    if set(against) != set(BASELINES):
        return not_yet(common_seeds(values, arm, *BASELINES))
    return "worth it" if worth_it(against) else "no"


def kind_verdict(values: Mapping[str, Values], arm: str, kind: str) -> str:
    """Rule 2. One baseline is enough for no."""
    (other,) = (categories for name, categories in KINDS.items() if name != kind)
    against = finished(values, arm, KINDS[kind])
    if any(one.low < BEATS_BY for one in against.values()):
        return "no"
    if loses(finished(values, arm, other)):
        return "no: it loses in the other kind"
    return "worth it" if worth_it(against) else not_yet(common_seeds(values, arm, *BASELINES))


def default_arm(means: Mapping[str, float], beside: Mapping[str, Difference | None]) -> str:
    """Rule 3: the best arm, if it is better than the paper's form."""
    best = max(means, key=lambda arm: means[arm])
    ahead = beside[best]
    return best if ahead is not None and ahead.low > 0 else "grape-paper"


def show_success(rows: Sequence[Result]) -> str:
    found = {one["asked"]: one["success"] for one in rows if one.get("part") == "success"}
    lines = [["right", *ASKED.values()]]
    for category in (*HIDDEN, *STATED):
        measured = [found.get(asked) for asked in ASKED]
        shares = ["–" if of is None or category in GRADED else f"{of[category]:.4f}" for of in measured]
        lines.append([category, *shares])
    return table(lines)


def show_categories(rows: Sequence[Result]) -> str:
    values, before = category_values(rows), category_values(rows, "before")
    if not values:
        return "no arm is done yet"
    rates = {one["arm"]: one["rate"] for one in rows if one.get("part") == "categories" and one["tuned"]}
    scores = [["category", "before", *(f"{arm} (rate {rates[arm]:g}, {len(values[arm])} seeds)" for arm in values)]]
    first = next(iter(before.values()))
    for category in (*HIDDEN, *STATED):
        untrained = mean([v for by_category in first.values() for v in by_category[category]])
        own = [mean([v for by_category in arm.values() for v in by_category[category]]) for arm in values.values()]
        scores.append([category, f"{untrained:.3f}", *(f"{value:.3f}" for value in own)])
    parts = [table(scores)]
    grape = [arm for arm in values if arm.startswith("grape")]
    for title, groups in (("category", {c: (c,) for c in (*HIDDEN, *STATED)}), ("kind", KINDS)):
        lines = [[title, "arm", *(f"− {base}" for base in BASELINES), "verdict"]]
        for name, categories in groups.items():
            for arm in grape:
                against = compare(values, arm, categories)
                says = (kind_verdict if title == "kind" else category_verdict)(values, arm, name)
                lines.append([name, arm, *(str(against.get(base, "–")) for base in BASELINES), says])
        parts.append(table(lines))
    if "grape-paper" in values:
        lines = [["arm", "mean of categories", "− grape-paper, all rows"]]
        means, beside = {}, {}
        for arm in grape:
            means[arm] = mean([mean([v for s in values[arm].values() for v in s[c]]) for c in (*HIDDEN, *STATED)])
            beside[arm] = differ(values[arm], values["grape-paper"], (*HIDDEN, *STATED))
            lines.append([arm, f"{means[arm]:.3f}", str(beside[arm]) if arm != "grape-paper" else ""])
        seeds = common_seeds(values, *(arm for arm in ARMS if arm.startswith("grape")))
        default = default_arm(means, beside) if seeds == len(SEEDS) else not_yet(seeds)
        parts += [table(lines), f"The default, by rule 3: {default}."]
    return "\n\n".join(parts)


def show_curves(rows: Sequence[Result]) -> str:
    """The mean score of each kind over the steps, to see what revisions add after step 51."""
    runs = [one for one in rows if one.get("part") == "categories" and one["tuned"]]
    lines = [["kind", "arm", *(f"step {step}" for step in SHOWN_STEPS)]]
    for kind, categories in KINDS.items():
        for arm in ARMS:
            curves = [one["curve"] for one in runs if one["arm"] == arm]
            if curves and all(str(step) in curves[0] for step in SHOWN_STEPS):
                at = [mean([curve[str(step)][c] for curve in curves for c in categories]) for step in SHOWN_STEPS]
                lines.append([kind, arm, *(f"{value:.3f}" for value in at)])
    return table(lines)


def confidence_verdict(against: Mapping[str, Difference]) -> str:
    """Rule 4, from the differences to `flat` that have all seeds."""
    if RIGHT not in against:
        return f"not yet ({RIGHT})"
    if against[RIGHT].low <= 0:
        return "no difference"
    if "shuffled" not in against:
        return "not yet (shuffled)"
    return "spurious" if against["shuffled"].low > 0 else "confidences pay"


def show_confidence(rows: Sequence[Result]) -> str:
    found: dict[str, dict[int, list[float]]] = defaultdict(dict)
    for one in rows:
        if one.get("part") == "confidence" and one["tuned"]:
            found[one["arm"]][one["seed"]] = one["scores"]["last"]
    lines = [["confidences", "seeds", "held-out accuracy", "− flat"]]
    against: dict[str, Difference] = {}
    for arm, by_seed in found.items():
        seeds = sorted(set(by_seed) & set(found.get("flat", {}))) if arm != "flat" else []
        beside = paired_difference([by_seed[s] for s in seeds], [found["flat"][s] for s in seeds]) if seeds else None
        if beside is not None and len(seeds) == len(SEEDS):
            against[arm] = beside
        accuracy = mean([mean(values) for values in by_seed.values()])
        lines.append([arm, str(len(by_seed)), f"{accuracy:.3f}", str(beside or "")])
    return f"{table(lines)}\n\nConfidence: {confidence_verdict(against)}."


def draw(rows: Sequence[Result], file: Path) -> None:
    """The score of every category over the steps, the differences that decide, and the accuracy under noise."""
    from matplotlib.figure import Figure

    from vigneron.report.figures import COLOURS, as_svg

    figure = Figure(figsize=(17, 7.5), layout="constrained")
    axes = figure.subplots(2, 5, width_ratios=(1, 1, 1, 1, 1.25))
    runs = [one for one in rows if one.get("part") == "categories" and one["tuned"]]
    for line, (kind, categories) in enumerate(KINDS.items()):
        for place, category in enumerate(categories):
            axis = axes[line][place]
            for at, arm in enumerate(ARMS):
                curves = [one["curve"] for one in runs if one["arm"] == arm]
                if curves:
                    steps = sorted(int(step) for step in curves[0])
                    values = [mean([curve[str(step)][category] for curve in curves]) for step in steps]
                    style = {"markersize": 4, "markevery": 3, "color": COLOURS[at], "label": arm}
                    axis.plot(steps, values, MARKERS[at], **style)
            axis.axvline(REVISED_FROM, color="grey", linewidth=0.8, linestyle=":")
            axis.set(title=category, xlabel="step", ylabel=f"{kind}: held-out score", ylim=(-0.03, 1.03))
            axis.locator_params(nbins=5)
            axis.label_outer()
    _draw_differences(axes[0][4], category_values(rows), COLOURS)
    _draw_confidence(axes[1][4], rows)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(ARMS), frameon=False)
    file.write_text(as_svg(figure), encoding="utf-8")


def _draw_differences(axis: Any, values: Mapping[str, Values], colours: Sequence[str]) -> None:
    """Of every GRAPE arm to both baselines, over the rows of each kind, from the top in the arms' order."""
    names: list[str] = []
    for base in BASELINES:
        for kind, categories in KINDS.items():
            for arm in values:
                beside = compare(values, arm, categories).get(base) if arm.startswith("grape") else None
                if beside is not None:
                    at = ARMS.index(arm)
                    y = len(names) + 0.15 * (at - 3.5)
                    bounds = [[beside.mean - beside.low], [beside.high - beside.mean]]
                    axis.errorbar(beside.mean, y, xerr=bounds, fmt=MARKERS[at][0], markersize=4, color=colours[at])
            names.append(f"{kind}\n− {base}")
    axis.axvline(0, color="grey", linewidth=0.8)
    axis.set_yticks(range(len(names)), names)
    axis.locator_params(axis="x", nbins=5)
    axis.set(title="difference, 95 %", ylim=(len(names) - 0.5, -0.5))


def _draw_confidence(axis: Any, rows: Sequence[Result]) -> None:
    noisy = [one for one in rows if one.get("part") == "confidence" and one["tuned"]]
    names = list(dict.fromkeys(one["arm"] for one in noisy))
    for at, arm in enumerate(names):
        accuracies = [mean(one["scores"]["last"]) for one in noisy if one["arm"] == arm]
        axis.plot(accuracies, [at] * len(accuracies), "k.")
        axis.plot([mean(accuracies)], [at], "k|", markersize=16)
    axis.set_yticks(range(len(names)), names)
    axis.set(title="confidences: each seed, and the mean", xlabel="held-out accuracy", ylim=(len(names) - 0.5, -0.5))
