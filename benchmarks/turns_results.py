"""Tables and figure of `turns_study`: its decision rule, with paired intervals. A verdict is given when no run that is
missing could change it; until then, "not yet"."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.paired import Difference, paired_difference, table
from benchmarks.study_settings import tuning_table
from benchmarks.study_store import Result, mean
from benchmarks.turns_rows import Facts, is_scored, nim_at_random, unit_means
from vigneron.data.guess import best_mean_reward

PART = "turns"
"""The label of the study's runs; those of warm-ups have their own."""
SEEDS = (0, 1, 2)
GAMES = ("guess", "maze", "sums-tool", "nim")

Scores = Mapping[str, Sequence[float]]
"""Of a run: the scores of its units `before` training and `last`, and the `base` from which rule 1 counts."""
Arm = Mapping[int, Scores]
"""By seed."""


def unit_scores(one: Result) -> Scores:
    """Of a finished run."""
    rows, scores = one["rows"], one["scores"]
    found = {"before": scores["before"], "last": scores["last"], "base": base_of(one)}
    return {name: unit_means(values, rows) for name, values in found.items()}


def base_of(one: Result) -> Sequence[float]:
    """The scores of rows before training; at Nim that of an illegal move is what a legal one at random scores."""
    before: Sequence[float] = one["scores"]["before"]
    if "legal" not in one:
        return before
    legal = zip(before, one["legal"]["before"], one["rows"], strict=True)
    return [score if is_legal else facts["at_random"] for score, is_legal, facts in legal]


def main_runs(rows: Sequence[Result]) -> list[Result]:
    return [one for one in rows if one.get("part") == PART and one["tuned"]]


def scores_by_arm(rows: Sequence[Result]) -> dict[str, dict[int, Scores]]:
    found: dict[str, dict[int, Scores]] = {}
    for one in main_runs(rows):
        found.setdefault(one["arm"], {})[one["seed"]] = unit_scores(one)
    return found


def last(scores: Scores) -> Sequence[float]:
    return scores["last"]


def gains(scores: Scores) -> Sequence[float]:
    """Of each unit, as rule 1 counts."""
    return [after - before for after, before in zip(scores["last"], scores["base"], strict=True)]


def gain(arm: Arm) -> Difference | None:
    """The score after training minus that before, as rule 1 counts."""
    values = [gains(arm[seed]) for seed in sorted(arm)]
    return paired_difference(values, [[0.0] * len(own) for own in values])


def lead(one: Arm, other: Arm, of: Callable[[Scores], Sequence[float]]) -> Difference | None:
    """What one arm has more than another of scores or gains, over the seeds that both have."""
    seeds = sorted(set(one) & set(other))
    if not seeds:
        return None
    return paired_difference([of(one[seed]) for seed in seeds], [of(other[seed]) for seed in seeds])


def is_above(difference: Difference | None) -> bool:
    return difference is not None and difference.low > 0


def not_yet(*arms: Arm) -> str | None:
    """What is said in place of a verdict on these arms that other seeds could change."""
    seeds = len(set.intersection(*(set(arm) for arm in arms)))
    return None if seeds == len(SEEDS) else f"not yet ({seeds} of {len(SEEDS)} seeds)"


def verdicts(arms: Mapping[str, Arm]) -> list[str]:
    """Rules 1 to 3, for the arms that are begun."""
    said = []
    for game in GAMES:
        if game in arms:
            found = gain(arms[game])
            says = not_yet(arms[game]) or ("learned" if is_above(found) else "not learned")
            said.append(f"{game}: {says}, {found or 'no interval'}")
    if {"sums-tool", "sums"} <= set(arms):
        tool, alone = arms["sums-tool"], arms["sums"]
        found = lead(tool, alone, last)
        pays = "the calculator pays" if is_above(found) else "the calculator does not pay"
        said.append(f"sums-tool − sums: {not_yet(tool, alone) or pays}, {found or 'no interval'}")
    if {"debate", "consultancy"} <= set(arms):
        debate, control = arms["debate"], arms["consultancy"]
        own, found = gain(debate), lead(debate, control, gains)
        lost = not not_yet(debate) and not is_above(own)  # whatever consultancy gains
        helps = "debate helps the judge" if is_above(own) and is_above(found) else "debate does not help the judge"
        says = helps if lost else not_yet(debate, control) or helps
        said.append(
            f"debate: {says}, {own or 'no interval'}; gain of debate − gain of consultancy {found or 'no interval'}"
        )
    return said


# ---------------------------------------------------------------------------------------------- tables


def show_all(rows: Sequence[Result]) -> str:
    if not main_runs(rows):
        return "no arm is done yet"
    verdict = "\n".join(f"- {line}" for line in (*verdicts(scores_by_arm(rows)), *unlike_starts(rows)))
    parts = [show_scores(rows), show_seeds(rows), verdict or "no verdict yet", show_nim(rows), show_warm_ups(rows)]
    return "\n\n".join([*(part for part in parts if part), tuning_table(rows, PART, lambda one: str(one["arm"]))])


def show_scores(rows: Sequence[Result]) -> str:
    """The difference is that of rule 1."""
    rates = {one["arm"]: one["rate"] for one in main_runs(rows)}
    names = {"reward": "reward", "correct": "accuracy"}
    measured = {one["arm"]: names[one["row_score"]] for one in main_runs(rows)}
    lines = [["arm", "rate", "seeds", "units", "score", "after the warm-up", "after GRPO", "difference"]]
    for arm, by_seed in scores_by_arm(rows).items():
        units = len(next(iter(by_seed.values()))["last"])
        before, after = (mean([mean(scores[name]) for scores in by_seed.values()]) for name in ("before", "last"))
        cells = [arm, f"{rates[arm]:g}", str(len(by_seed)), str(units), measured[arm], f"{before:.3f}", f"{after:.3f}"]
        lines.append([*cells, str(gain(by_seed) or "–")])
    return table(lines)


def show_seeds(rows: Sequence[Result]) -> str:
    """Of each seed, the score after the warm-up and after GRPO."""
    lines = [["each seed: after the warm-up → after GRPO", *map(str, SEEDS)]]
    for arm, by_seed in scores_by_arm(rows).items():
        scores = {seed: (mean(own["before"]), mean(own["last"])) for seed, own in by_seed.items()}
        cells = (f"{scores[seed][0]:.3f} → {scores[seed][1]:.3f}" if seed in scores else "–" for seed in SEEDS)
        lines.append([arm, *cells])
    return table(lines)


POSITIONS: Mapping[str, Callable[[Facts], bool]] = {
    "can be won": is_scored,
    "can be won, starts of training": lambda facts: facts["can_be_won"] and facts["is_start"],
    "lost: every legal move scores 1": lambda facts: not facts["can_be_won"],
}


def show_nim(rows: Sequence[Result]) -> str:
    """Play and illegal moves by kind of position. Only the first kind counts in the rule. Empty without a run."""
    runs = [one for one in main_runs(rows) if "legal" in one]
    if not runs:
        return ""
    head = ["Nim: positions", "number", "sets of piles", "a legal move at random", "after the warm-up", "after GRPO"]
    lines = [[*head, "illegal after the warm-up", "illegal after GRPO"]]
    for kind, wanted in POSITIONS.items():
        chosen = [facts for facts in runs[0]["rows"] if wanted(facts)]
        if chosen:
            shares = [
                mean([mean(unit_means(values, one["rows"], wanted)) for values, one in zip(column, runs, strict=True)])
                for column in zip(*map(_nim_values, runs), strict=True)
            ]
            counts = [str(len(chosen)), str(len({facts["unit"] for facts in chosen}))]
            lines.append([kind, *counts, *(f"{share:.3f}" for share in shares)])
    return table(lines)


def _nim_values(one: Result) -> list[list[float]]:
    """Of each row: the columns of the table."""
    scores, legal = one["scores"], one["legal"]
    illegal = [[1 - share for share in legal[name]] for name in ("before", "last")]
    return [[facts["at_random"] for facts in one["rows"]], scores["before"], scores["last"], *illegal]


def show_warm_ups(rows: Sequence[Result]) -> str:
    lines = [["warm-up", "first loss", "last loss", "seconds", "weights"]]
    for one in rows:
        if one.get("part") == "warm-up":
            losses = [f"{one[name]:.3f}" for name in ("first_loss", "last_loss")]
            lines.append([one["recipe"], *losses, f"{one['seconds']:.0f}", one["weights"][:8]])
    return table(lines)


def unlike_starts(rows: Sequence[Result]) -> list[str]:
    """Seeds in which debate and its control began from different weights."""
    began = {(one["arm"], one["seed"]): one["weights"] for one in main_runs(rows)}
    pairs = [(seed, began.get(("debate", seed)), began.get(("consultancy", seed))) for seed in SEEDS]
    return [
        f"debate and consultancy of seed {seed} began from different weights: the warm-up was trained twice"
        for seed, *weights in pairs
        if None not in weights and len(set(weights)) > 1
    ]


# ---------------------------------------------------------------------------------------------- figure


def references() -> dict[str, dict[str, float]]:
    """Of arms: what known players score."""
    return {
        "guess": {"binary search": best_mean_reward(16)},
        "maze": {"shortest way": 1.0},
        "nim": {"legal moves at random": nim_at_random(), "best play": 1.0},
        "debate": {"quotes at random": 0.83, "best for each side": 0.98},
        "consultancy": {"quotes at random": 0.73, "best for the consultant": 0.50},
    }


GROUPS: Mapping[str, Sequence[str]] = {
    "guessing game: reward": ["guess"],
    "maze: reward": ["maze"],
    "large sums: accuracy": ["sums-tool", "sums"],
    "Nim: moves that keep the value": ["nim"],
    "debate: the judge's accuracy": ["debate"],
    "consultancy: the judge's accuracy": ["consultancy"],
}
LABELS = {"sums-tool": "with a calculator", "sums": "without"}
COLUMNS = 3


def draw(rows: Sequence[Result], file: Path) -> None:
    """Held-out scores over the steps of the arms that have a run: each seed's thin, their mean thick; known players as
    dashed lines."""
    from matplotlib.figure import Figure

    from vigneron.report.figures import COLOURS, as_svg

    begun = {one["arm"] for one in main_runs(rows)}
    groups = {title: arms for title, arms in GROUPS.items() if begun & set(arms)}
    lines = -(-len(groups) // COLUMNS)
    figure, known = Figure(figsize=(10, 2.9 * lines), layout="constrained"), references()
    axes = figure.subplots(lines, COLUMNS, squeeze=False).flat
    for axis in axes[len(groups) :]:
        axis.set_axis_off()
    for axis, (title, arms) in zip(axes, groups.items(), strict=False):
        for colour, arm in zip(COLOURS, arms, strict=False):
            curves = [one["curve"] for one in main_runs(rows) if one["arm"] == arm]
            if not curves:
                continue
            for curve in curves:
                steps = sorted(map(int, curve))
                axis.plot(steps, [curve[str(step)] for step in steps], color=colour, linewidth=0.9, alpha=0.5)
            common = sorted(set.intersection(*(set(map(int, curve)) for curve in curves)))
            means = [mean([curve[str(step)] for curve in curves]) for step in common]
            axis.plot(common, means, color=colour, linewidth=2, label=LABELS.get(arm))
            for name, score in known.get(arm, {}).items():
                axis.axhline(score, color="0.4", linestyle="--", linewidth=0.8)
                axis.annotate(
                    name,
                    (0.98, score),
                    xytext=(0, 1),
                    xycoords=("axes fraction", "data"),
                    textcoords="offset points",
                    ha="right",
                    va="bottom",
                    fontsize=8,
                    color="0.25",
                )
        axis.set(title=title, xlabel="step", ylim=(-0.03, 1.1))
        if len(arms) > 1:
            axis.legend(frameon=False, loc="center right")
    file.write_text(as_svg(figure), encoding="utf-8")
