"""Tables and figure of `turns_study`: its decision rule, with paired intervals."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.paired import Difference, paired_difference, table
from benchmarks.study_store import Result, mean

GAMES = ("guess", "maze", "sums-tool", "nim")

Scores = Mapping[int, Mapping[str, Sequence[float]]]
"""Of an arm: by seed, the scores of rows (`study_store.scores_of`)."""


def scores_by_arm(rows: Sequence[Result]) -> dict[str, dict[int, Mapping[str, Sequence[float]]]]:
    found: dict[str, dict[int, Mapping[str, Sequence[float]]]] = {}
    for one in rows:
        if one["tuned"]:
            found.setdefault(one["arm"], {})[one["seed"]] = one["scores"]
    return found


def gain(arm: Scores) -> Difference | None:
    """The score after training minus that before."""
    return paired_difference([arm[seed]["last"] for seed in sorted(arm)], [arm[seed]["before"] for seed in sorted(arm)])


def lead(one: Scores, other: Scores) -> Difference | None:
    """One arm's score minus another's, over the seeds that both have."""
    seeds = sorted(set(one) & set(other))
    if not seeds:
        return None
    return paired_difference([one[seed]["last"] for seed in seeds], [other[seed]["last"] for seed in seeds])


def gain_lead(one: Scores, other: Scores) -> Difference | None:
    """One arm's gain minus another's, over the seeds that both have."""
    seeds = sorted(set(one) & set(other))
    if not seeds:
        return None
    return paired_difference([_gains(one[seed]) for seed in seeds], [_gains(other[seed]) for seed in seeds])


def _gains(scores: Mapping[str, Sequence[float]]) -> list[float]:
    """Of each row."""
    return [last - before for last, before in zip(scores["last"], scores["before"], strict=True)]


def is_above(difference: Difference | None) -> bool:
    return difference is not None and difference.low > 0


def verdicts(arms: Mapping[str, Scores]) -> list[str]:
    """Rules 1 to 3, for the arms that are done."""
    said = []
    for game in GAMES:
        if game in arms:
            found = gain(arms[game])
            said.append(f"{game}: {'learned' if is_above(found) else 'not learned'}, {found or 'no interval'}")
    if {"sums-tool", "sums"} <= set(arms):
        found = lead(arms["sums-tool"], arms["sums"])
        says = "the calculator pays" if is_above(found) else "the calculator does not pay"
        said.append(f"sums-tool − sums: {says}, {found or 'no interval'}")
    if {"debate", "consultancy"} <= set(arms):
        own, found = gain(arms["debate"]), gain_lead(arms["debate"], arms["consultancy"])
        says = "debate helps the judge" if is_above(own) and is_above(found) else "debate does not help the judge"
        said.append(
            f"debate: {says}, {own or 'no interval'}; gain of debate − gain of consultancy {found or 'no interval'}"
        )
    return said


def show_scores(rows: Sequence[Result]) -> str:
    arms = scores_by_arm(rows)
    if not arms:
        return "no arm is done yet"
    rates = {one["arm"]: one["rate"] for one in rows if one["tuned"]}
    names = {"reward": "reward", "correct": "accuracy"}
    measured = {one["arm"]: names[one["row_score"]] for one in rows if one["tuned"]}
    lines = [["arm", "rate", "seeds", "score", "after the warm-up", "after GRPO", "difference"]]
    for arm, by_seed in arms.items():
        before, last = (mean([mean(scores[name]) for scores in by_seed.values()]) for name in ("before", "last"))
        cells = [arm, f"{rates[arm]:g}", str(len(by_seed)), measured[arm], f"{before:.3f}", f"{last:.3f}"]
        lines.append([*cells, str(gain(by_seed) or "–")])
    return table(lines)


def show_verdicts(rows: Sequence[Result]) -> str:
    return "\n".join(f"- {line}" for line in verdicts(scores_by_arm(rows))) or "no verdict yet"


def draw(rows: Sequence[Result], file: Path) -> None:
    """Every seed's held-out score over the steps."""
    from matplotlib.figure import Figure

    from vigneron.report.figures import COLOURS, as_svg

    groups = {
        "guessing game: reward": ["guess"],
        "maze: reward": ["maze"],
        "large sums: accuracy": ["sums-tool", "sums"],
        "Nim: moves that keep the value": ["nim"],
        "debate: the judge's accuracy": ["debate", "consultancy"],
    }
    figure = Figure(figsize=(16, 3.4), layout="constrained")
    for axis, (title, arms) in zip(figure.subplots(1, len(groups)), groups.items(), strict=True):
        for colour, arm in zip(COLOURS, arms, strict=False):
            curves = [one["curve"] for one in rows if one["tuned"] and one["arm"] == arm]
            for at, curve in enumerate(curves):
                steps = sorted(int(step) for step in curve)
                label = arm if at == 0 and len(arms) > 1 else None
                axis.plot(steps, [curve[str(step)] for step in steps], color=colour, label=label)
        axis.set(title=title, xlabel="step", ylim=(-0.02, 1.02))
        if len(arms) > 1 and axis.get_legend_handles_labels()[0]:
            axis.legend(frameon=False)
    file.write_text(as_svg(figure), encoding="utf-8")
