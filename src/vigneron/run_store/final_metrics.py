"""Final metrics of runs: one number per metric and run, and mean and spread over an arm's runs."""

import statistics
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from vigneron.run_store.experiment_arms import Arm, CollectedRun
from vigneron.run_store.metric_table import metric
from vigneron.run_store.rubric_items import (
    HELD_OUT_PREFIX,
    HELD_OUT_RUBRIC_PREFIX,
    ITEM_METRICS,
    LARGEST_CANARY,
    TRAINING_PREFIX,
    all_keys,
    canaries,
    category_rewards,
    items_of,
)
from vigneron.run_store.series import Records, series
from vigneron.run_store.stability import STABILITY_KEYS, final_window, stability

HELD_OUT_SECTION, TRAINING_SECTION = "held out, last evaluation", "training, last 5 %"
SIZE = ("steps", "episodes", "seconds")
TRAINING = (
    "reward",
    "accuracy",
    "exact_match",
    "entropy",
    "kl",
    "kl_previous",
    "loss/nll",
    "completions/echo",
    "completions/repetition",
    "completions/distinct",
    "completions/length_ratio",
)
EVALUATED = (
    "eval/accuracy",
    "eval/reward",
    "eval/exact_match",
    "eval/answer_included",
    "eval/completions/echo",
    "eval/completions/repetition",
    "eval/completions/distinct",
    "eval/completions/length_ratio",
)
BEFORE = "_before"
"""Ending of a held-out key: the evaluation before the first step."""
ORIGIN_SHOWN = (
    *(f"origin/{what}{origin}" for what in ("", "reward/", "advantage/") for origin in ("revised", "demonstrated")),
    "drawn/gap",
)
ORIGIN = ("origin/fresh", "origin/reward/fresh", "origin/advantage/fresh", *ORIGIN_SHOWN, "drawn/too_long")

Values = dict[str, float | None]


def before_and_last(keys: Iterable[str]) -> list[str]:
    return [f"{key}{when}" for key in keys for when in (BEFORE, "")]


HELD_OUT = tuple(before_and_last(EVALUATED))


def rubric_training_keys(records: Records) -> list[str]:
    keys = all_keys(records)
    return [
        *category_rewards(keys).values(),
        *(key for key in ORIGIN if key in keys),
        *_item_keys(keys, TRAINING_PREFIX),
    ]


def rubric_held_out_keys(records: Records) -> list[str]:
    keys = all_keys(records)
    evaluations = [
        *category_rewards(keys, HELD_OUT_PREFIX).values(),
        *(key for key in (f"{HELD_OUT_RUBRIC_PREFIX}reward", LARGEST_CANARY) if key in keys),
        *category_rewards(keys, HELD_OUT_RUBRIC_PREFIX).values(),
        *canaries(keys).values(),
        *_item_keys(keys, HELD_OUT_PREFIX),
    ]
    return before_and_last(evaluations)


def _item_keys(keys: Collection[str], prefix: str) -> list[str]:
    wanted = [item.under(prefix, name) for item in items_of(keys, prefix) for name in ITEM_METRICS]
    return [key for key in wanted if key in keys]


def table_sections(keys: Iterable[str]) -> dict[str, list[str]]:
    """The keys of a comparison's table, by section; a rubric's items are in compare.csv only."""
    keys = list(keys)
    evaluated = dict.fromkeys(key.removesuffix(BEFORE) for key in keys)
    of_rubric = [
        *category_rewards(evaluated, HELD_OUT_PREFIX).values(),
        f"{HELD_OUT_RUBRIC_PREFIX}reward",
        LARGEST_CANARY,
    ]
    wanted = {
        HELD_OUT_SECTION: [*HELD_OUT, *before_and_last(of_rubric)],
        TRAINING_SECTION: [*TRAINING, *category_rewards(keys).values(), *ORIGIN_SHOWN],
        "stability": list(STABILITY_KEYS),
        "size": list(SIZE),
    }
    return {section: [key for key in of if key in keys] for section, of in wanted.items()}


def row_label(key: str) -> str:
    """The metric's label; that a value is held out is in the section's name."""
    label = metric(key.removesuffix(BEFORE)).label.removeprefix("held-out ")
    return f"{label}, before" if key.endswith(BEFORE) else label


class Spread(NamedTuple):
    """Over an arm's runs that have the metric. One run has no standard deviation."""

    runs: int
    mean: float
    std: float | None
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        std = statistics.stdev(values) if len(values) > 1 else None
        return cls(len(values), statistics.mean(values), std, min(values), max(values))


def final_values(run: CollectedRun) -> Values:
    """Every metric of one run; None where it was not measured."""
    by_rubric = run.config.reward.kind == "rubric"
    return {
        "steps": run.records[-1]["step"],
        "episodes": run.records[-1]["episodes"],
        "seconds": run.seconds,
        **training_values(run.records, rubric_training_keys(run.records) if by_rubric else ()),
        **held_out_values(run.records, rubric_held_out_keys(run.records) if by_rubric else ()),
        **stability(run.records),
    }


def training_values(records: Records, more: Iterable[str] = ()) -> Values:
    """Means over the last steps; a metric that is not measured at every step over those that have it."""
    steps = [record for record in records if record["step"] > 0]
    last = steps[-final_window(len(steps)) :]
    curves = {key: series(last, key)[1] for key in (*TRAINING, *more)}
    return {key: statistics.fmean(values) if values else None for key, values in curves.items()}


def held_out_values(records: Records, more: Iterable[str] = ()) -> Values:
    """Before: the evaluation at step 0. Otherwise the last one of a later step."""
    values_by_key: Values = {}
    for key in (*HELD_OUT, *more):
        before = key.endswith(BEFORE)
        of = [record for record in records if (record["step"] == 0) == before]
        values_by_key[key] = next(reversed(series(of, key.removesuffix(BEFORE))[1]), None)
    return values_by_key


def spreads(arm: Arm) -> dict[str, Spread]:
    """Of every metric that at least one of the arm's runs has."""
    runs = [final_values(run) for run in arm.runs]
    keys = dict.fromkeys(key for values in runs for key in values)
    values_by_key = {key: [v for values in runs if (v := values.get(key)) is not None] for key in keys}
    return {key: Spread.of(values) for key, values in values_by_key.items() if values}
