"""What runs came to: one number a figure and run, and mean and spread over an arm's runs."""

import statistics
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from vigneron.report.curves import Records, series
from vigneron.report.experiment_arms import Arm, CollectedRun
from vigneron.report.rubric_items import (
    HELD_OUT_PREFIX,
    ITEM_FIGURES,
    LARGEST_CANARY,
    OF_ORIGIN,
    SECOND_PREFIX,
    TRAINING_PREFIX,
    all_keys,
    canaries,
    category_rewards,
    items_of,
)
from vigneron.report.stability import final_window, stability

Titled = tuple[str, str]
"""A figure's key, and what it is called."""
WHEN = ("_before", "")


def training_keys(records: Records) -> list[str]:
    keys = all_keys(records)
    return [
        *category_rewards(keys).values(),
        *(key for key in OF_ORIGIN if key in keys),
        *_of_items(keys, TRAINING_PREFIX),
    ]


def held_out_keys(records: Records) -> list[str]:
    """Each before training, and at the last evaluation."""
    keys = all_keys(records)
    found = [
        *category_rewards(keys, HELD_OUT_PREFIX).values(),
        *(key for key in (f"{SECOND_PREFIX}reward", LARGEST_CANARY) if key in keys),
        *category_rewards(keys, SECOND_PREFIX).values(),
        *canaries(keys).values(),
        *_of_items(keys, HELD_OUT_PREFIX),
    ]
    return [f"{key}{when}" for key in found for when in WHEN]


def _of_items(keys: Collection[str], prefix: str) -> list[str]:
    wanted = [item.under(prefix, figure) for item in items_of(keys, prefix) for figure in ITEM_FIGURES]
    return [key for key in wanted if key in keys]


def held_out_titles(keys: Iterable[str]) -> list[Titled]:
    """Rewards by category, and what is looked at beside them."""
    measured = dict.fromkeys(key.removesuffix("_before") for key in keys)
    found = [
        *((key, f"reward, {name}") for name, key in category_rewards(measured, HELD_OUT_PREFIX).items()),
        (f"{SECOND_PREFIX}reward", "second rubric's reward"),
        (LARGEST_CANARY, "most that a canary earned"),
    ]
    return [(f"{key}{when}", f"{title}{', before' if when else ''}") for key, title in found for when in WHEN]


def training_titles(keys: Iterable[str]) -> list[Titled]:
    return [
        *((key, f"reward, {name}") for name, key in category_rewards(keys).items()),
        ("origin/revised", "share of revisions"),
        ("origin/demonstrated", "share of demonstrations"),
        ("drawn/gap", "gap between the texts"),
    ]


Values = dict[str, float | None]


class Figure(NamedTuple):
    key: str
    title: str


SIZE = (
    Figure("steps", "steps"),
    Figure("episodes", "episodes"),
    Figure("seconds", "seconds in steps"),
)
TRAINING = (
    Figure("reward", "reward"),
    Figure("accuracy", "accuracy, sampled"),
    Figure("exact_match", "exact match, sampled"),
    Figure("entropy", "entropy"),
    Figure("kl", "KL to the start"),
    Figure("kl_previous", "KL between steps"),
    Figure("loss/nll", "negative log-likelihood"),
    Figure("completions/echo", "echo of the input"),
    Figure("completions/repetition", "repetition"),
    Figure("completions/distinct", "distinct completions"),
    Figure("completions/length_ratio", "length, answers = 1"),
)
HELD_OUT = tuple(
    Figure(f"eval/{key}{when}", f"{title}{', before' if when else ''}")
    for key, title in (
        ("accuracy", "accuracy"),
        ("reward", "reward"),
        ("exact_match", "exact match"),
        ("answer_included", "answer included"),
        ("completions/echo", "echo of the input"),
        ("completions/repetition", "repetition"),
        ("completions/distinct", "distinct completions"),
        ("completions/length_ratio", "length, answers = 1"),
    )
    for when in ("_before", "")
)
STABILITY = (
    Figure("entropy_collapses", "collapses of entropy"),
    Figure("entropy_recoveries", "of them recovered"),
    Figure("kl_largest_rise", "largest rise of KL in a step"),
    Figure("kl_previous_largest", "largest KL between steps"),
    Figure("reward_drop", "drop from the best reward"),
    Figure("steps_without_reward", "share of steps without reward"),
)
SECTIONS = {
    "held out, greedy, last": HELD_OUT,
    "training, last 5 %": TRAINING,
    "stability": STABILITY,
    "size": SIZE,
}


class Spread(NamedTuple):
    """Over an arm's runs that have the figure. One run has no standard deviation."""

    runs: int
    mean: float
    std: float | None
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        std = statistics.stdev(values) if len(values) > 1 else None
        return cls(len(values), statistics.mean(values), std, min(values), max(values))


def values_of(run: CollectedRun) -> Values:
    """Every figure of one run; None where it was not measured."""
    steps = run.records[-1]["step"]
    by_rubric = run.config.reward.kind == "rubric"
    return {
        "steps": steps,
        "episodes": run.records[-1]["episodes"],
        "seconds": run.seconds,
        **training_values(run.records, training_keys(run.records) if by_rubric else ()),
        **held_out_values(run.records, held_out_keys(run.records) if by_rubric else ()),
        **stability(run.records),
    }


def training_values(records: Records, more: Iterable[str] = ()) -> Values:
    """Means over the last steps; of a figure that is measured now and then, over those steps that have it."""
    steps = [record for record in records if record["step"] > 0]
    last = steps[-final_window(len(steps)) :]
    found = {key: series(last, key)[1] for key in (*(figure.key for figure in TRAINING), *more)}
    return {key: statistics.fmean(values) if values else None for key, values in found.items()}


def held_out_values(records: Records, more: Iterable[str] = ()) -> Values:
    """Before: the evaluation at step 0. After: the last one of a later step."""
    found: Values = {}
    for key in (*(figure.key for figure in HELD_OUT), *more):
        before = key.endswith("_before")
        of = [record for record in records if (record["step"] == 0) == before]
        found[key] = next(reversed(series(of, key.removesuffix("_before"))[1]), None)
    return found


def spreads(arm: Arm) -> dict[str, Spread]:
    """Of every figure that at least one of the arm's runs has."""
    runs = [values_of(run) for run in arm.runs]
    keys = dict.fromkeys(key for values in runs for key in values)
    found = {key: [v for values in runs if (v := values.get(key)) is not None] for key in keys}
    return {key: Spread.of(values) for key, values in found.items() if values}


def shown(spread: Spread | None) -> str:
    """As in `0.612 ± 0.021`."""
    if spread is None:
        return "–"
    return number(spread.mean) + (f" ± {number(spread.std)}" if spread.std is not None else "")


def number(value: float) -> str:
    if value == int(value) and (isinstance(value, int) or value == 0):
        return f"{int(value):,}"
    size = abs(value)
    return f"{value:,.0f}" if size >= 10_000 else f"{value:.2e}" if size < 0.0005 else f"{value:.3f}"
