"""95 % intervals of a comparison: of each arm's held-out score, and of the difference between two arms.

A difference is paired where it can be: by held-out row, and by seed if both arms have the same seeds. What rows have in
common (some are hard), and seeds (the order of prompts), then cancels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from vigneron.core.intervals import seeds_and_rows_interval, wilson
from vigneron.core.paired import Interval, paired_interval
from vigneron.run_store.eval_rows import SCORES, row_means
from vigneron.run_store.experiment_arms import Arm, CollectedRun
from vigneron.run_store.final_metrics import row_label
from vigneron.run_store.series import series

LIMITS = {"eval/accuracy": (0.0, 1.0)}
"""What a score can be, where it is known; a difference is within the span of it."""


FEW_SEEDS = 8


@dataclass(frozen=True)
class Estimate:
    """An arm's mean held-out score, or by how much it is above that of another arm (`minus`), with its interval."""

    metric: str
    arm: str
    minus: str | None
    interval: Interval
    seeds: int
    rows: int
    """0: the runs' logs have no rows, and the interval covers other seeds only."""
    same_seeds: bool
    by_seed: tuple[float, ...] = ()
    """Of each seed; none of a difference whose seeds are not paired."""

    @property
    def label(self) -> str:
        return row_label(self.metric)

    @property
    def of(self) -> str:
        return self.arm if self.minus is None else f"{self.arm} − {self.minus}"

    @property
    def value(self) -> str:
        """As in `+0.021 [−0.004, +0.046]`; an arm's own score has no sign."""
        sign = "" if self.minus is None else "+"
        mean, low, high = (f"{value:{sign}.3f}".replace("-", "−") for value in self.interval)
        return f"{mean} [{low}, {high}]"

    @property
    def seed_values(self) -> str:
        """Each seed's value, where they are few."""
        if not 1 < len(self.by_seed) <= FEW_SEEDS:
            return ""
        sign = "" if self.minus is None else "+"
        return ", ".join(f"{value:{sign}.3f}".replace("-", "−") for value in self.by_seed)

    @property
    def covers(self) -> str:
        """What varies from draw to draw, in words."""
        seeds = f"{self.seeds} seed" + "s" * (self.seeds > 1)
        if self.minus is None:
            return seeds if not self.rows else f"{seeds}, {self.rows} rows" if self.seeds > 1 else f"{self.rows} rows"
        paired = [f"{self.rows} rows"] * bool(self.rows) + [seeds] * self.same_seeds
        if not paired:
            return "nothing is paired"
        return f"paired by {' and '.join(paired)}" + ("" if self.same_seeds else "; other seeds")


def estimates(arms: Sequence[Arm], evaluations: int = 1) -> list[Estimate]:
    """Arms first, then differences, by metric. What nothing can be said of is left out."""
    found = []
    for metric in SCORES:
        found += [one for arm in arms if (one := _of_arm(arm, metric, evaluations)) is not None]
        found += [one for pair in combinations(arms, 2) if (one := _difference(*pair, metric, evaluations)) is not None]
    return found


def not_compared(arms: Sequence[Arm], intervals: Sequence[Estimate]) -> list[str]:
    """A line for each pair of arms that have scores of their own and no difference, with the first key that differs."""
    pairs, own = {(one.arm, one.minus) for one in intervals}, {one.arm for one in intervals}
    lines = []
    for first, second in combinations(arms, 2):
        if (first.name, second.name) in pairs or not {first.name, second.name} <= own:
            continue
        keys = zip(SCORED_BY, _scored_by(first, ""), _scored_by(second, ""), strict=False)
        changed = next((f"{key} is {one!r} and {other!r}" for key, one, other in keys if one != other), None)
        why = changed or "their held-out rows are not the same"
        lines.append(f"{first.name} and {second.name} are not compared: {why}")
    return lines


def too_few_evaluations(arms: Sequence[Arm], evaluations: int) -> list[str]:
    """A line for each arm that has no interval because a run was evaluated less often than is asked for."""
    lines = []
    for arm in arms:
        counts = [max(len(_last_steps(run, metric, None)) for metric in SCORES) for run in arm.runs]
        if 0 < min(counts) < evaluations:
            few = f"a run has {min(counts)} evaluation{'s' * (min(counts) > 1)} after the first step"
            lines.append(f"{arm.name} has no interval: {few}, and --evaluations is {evaluations}")
    return lines


SCORED_BY = ("data.task", "data.held_out", "data.checker")
"""The keys that `_scored_by` begins with."""


def _of_arm(arm: Arm, metric: str, evaluations: int) -> Estimate | None:
    scores = _scores([_by_seed(arm)], metric, evaluations)
    if scores is None:
        return None
    (scores_SR,), rows = scores
    interval, limits = seeds_and_rows_interval(scores_SR), LIMITS.get(metric)
    if interval is not None and limits is not None and rows > 1 and interval.low == interval.high:
        interval = Interval(interval.mean, *wilson(interval.mean * rows, rows))  # no row differs: others would
    return None if interval is None else _estimate(metric, arm, None, interval, limits, scores_SR, rows, True)


def _difference(first: Arm, second: Arm, metric: str, evaluations: int) -> Estimate | None:
    """Of arms that were scored alike: the same held-out rows, checker and, for rewards, the same reward."""
    if _scored_by(first, metric) != _scored_by(second, metric):
        return None
    one, other = _by_seed(first), _by_seed(second)
    scores = _scores([one, other], metric, evaluations)
    if scores is None:
        return None
    (first_SR, second_TR), rows = scores
    same_seeds = [run.config.seed for run in one.runs] == [run.config.seed for run in other.runs]
    if same_seeds:
        interval = seeds_and_rows_interval(first_SR - second_TR)
    else:
        interval = seeds_and_rows_interval(first_SR, second_TR)
    if interval is not None and metric in LIMITS and rows > 1 and interval.low == interval.high:
        interval = paired_interval([interval.mean] * rows, 1.0)
    if interval is None:
        return None
    paired_SR = first_SR - second_TR if same_seeds else None
    low, high = LIMITS.get(metric, (0.0, float("inf")))
    seeds = min(len(first_SR), len(second_TR))
    return _estimate(metric, one, other, interval, (low - high, high - low), paired_SR, rows, same_seeds, seeds)


def _estimate(
    metric: str,
    arm: Arm,
    minus: Arm | None,
    interval: Interval,
    limits: tuple[float, float] | None,
    scores_SR: Tensor | None,
    rows: int,
    same_seeds: bool,
    seeds: int | None = None,
) -> Estimate:
    mean, low, high = interval
    if limits is not None:
        low, high = max(low, limits[0]), min(high, limits[1])
    name = None if minus is None else minus.name
    by_seed = () if scores_SR is None else tuple(scores_SR.mean(1).tolist())
    return Estimate(metric, arm.name, name, Interval(mean, low, high), seeds or len(by_seed), rows, same_seeds, by_seed)


def _by_seed(arm: Arm) -> Arm:
    return Arm(arm.name, sorted(arm.runs, key=lambda run: run.config.seed))


def _scored_by(arm: Arm, metric: str) -> tuple[object, ...]:
    config = arm.runs[0].config
    data = config.data
    return (data.task, data.held_out, data.checker, config.reward if metric == "eval/reward" else None)


def _scores(arms: Sequence[Arm], metric: str, evaluations: int) -> tuple[list[Tensor], int] | None:
    """Each arm's scores, seeds × rows, of the rows that all runs scored, and their number. Where a run's logs have no
    rows, the runs' means, as one row, and 0; None where a run has no score, or the rows are others."""
    steps = {id(run): _last_steps(run, metric, evaluations) for arm in arms for run in arm.runs}
    if not all(steps.values()):
        return None
    runs = [run for arm in arms for run in arm.runs]
    if all(run.rows for run in runs):
        means = {id(run): row_means(run.rows, SCORES[metric], steps[id(run)]) for run in runs}
        names = sorted(set.intersection(*(set(of_run) for of_run in means.values())))
        tensors = [_tensor([[means[id(run)][name] for name in names] for run in arm.runs]) for arm in arms]
        return (tensors, len(names)) if names else None
    return [_tensor([[_mean(run, metric, steps[id(run)])] for run in arm.runs]) for arm in arms], 0


def _tensor(values: list[list[float]]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _last_steps(run: CollectedRun, metric: str, evaluations: int | None) -> list[int]:
    """The steps of its last evaluations, or none if it has fewer. None: of all of them."""
    found = [int(step) for step in series(run.records, metric)[0] if step > 0]
    if evaluations is None:
        return found
    return found[-evaluations:] if len(found) >= evaluations else []


def _mean(run: CollectedRun, metric: str, steps: Sequence[int]) -> float:
    values = [record[metric] for record in run.records if record["step"] in steps]
    return sum(values) / len(values)
