"""What a run reached: its held-out metric before and after, whether the rows can show a difference, the best step.

Read from a run's folder, without torch: `vigneron runs`, `show`, the viewer, the report and the alerts use it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from vigneron.core.paired import Interval, paired_interval, shares_interval
from vigneron.errors import UserError
from vigneron.files import lines_of
from vigneron.run_store.eval_rows import SCORES, EvalRow, read_eval_rows, row_means
from vigneron.run_store.folder import record_of
from vigneron.run_store.headline_metrics import has_open_answers, headline_metrics, is_open_task
from vigneron.run_store.metric_table import Metric, lower_is_better, metric
from vigneron.run_store.metrics_file import Record
from vigneron.run_store.status import RunStatus, rows_in, saved_checkpoints
from vigneron.values import is_number

SHARES = ("eval/accuracy", "eval/rewards/accuracies")
"""Shares of rows: their number alone gives an interval, where the scores of single rows are not kept."""

Verdict = Literal["better", "worse", "undecided", "no interval", "one evaluation", "not evaluated"]
"""`undecided`: the rows show no difference. `no interval`: the method keeps no scores of single rows."""


@dataclass(frozen=True)
class Evaluation:
    step: int
    value: float


@dataclass(frozen=True)
class Outcome:
    """All None and 0 for a run that was not evaluated."""

    metric: str = ""
    """The held-out metric that counts: `keep_best`, or the run's first headline metric."""
    before: Evaluation | None = None
    """The first evaluation with a value: of step 0, the model before training."""
    after: Evaluation | None = None
    """The last one, of a later step."""
    change: Interval | None = None
    """After − before, with its 95 % interval for other rows."""
    rows: int = 0
    """Held-out rows that have a score at both."""
    best: Evaluation | None = None
    """The best evaluation after training began; of equal ones, one with a checkpoint, then the first."""
    best_saved: bool = False
    """Whether the checkpoint of that step exists."""
    no_value: int | None = None
    """The last evaluation, where it has no value: its reward failed, or was not a number."""

    @property
    def label(self) -> str:
        return metric(self.metric).label

    @property
    def lower_is_better(self) -> bool:
        return lower_is_better(self.metric)

    @property
    def verdict(self) -> Verdict:
        if self.before is None:
            return "not evaluated"
        if self.after is None:
            return "one evaluation"
        if self.change is None:
            return "no interval" if self.rows == 0 else "undecided"
        return verdict_of(self.change, lower_is_better=self.lower_is_better)

    @property
    def best_is_last(self) -> bool:
        """Whether no evaluation is better than the last one."""
        return self.after is not None and self.best is not None and self.best.value == self.after.value


def verdict_of(change: Interval, *, lower_is_better: bool) -> Literal["better", "worse", "undecided"]:
    """By whether the interval of the change holds 0."""
    if change.low <= 0 <= change.high:
        return "undecided"
    return "better" if (change.low > 0) != lower_is_better else "worse"


def outcome_of(status: RunStatus) -> Outcome:
    records, saved = evaluations_of(status.path), [one.step for one in saved_checkpoints(status.path)]
    if (judged_by := outcome_metric(status.config, records)) is None:
        return Outcome(no_value=records[-1]["step"] if records else None)
    return outcome_from(judged_by.key, records, saved, status.path)


def outcome_from(key: str, records: Sequence[Record], saved: Sequence[int], path: Path) -> Outcome:
    """By this metric, which has a value. `records`: the evaluations, in order; `saved`: the steps of checkpoints."""
    measured = [Evaluation(record["step"], float(record[key])) for record in records if is_number(record.get(key))]
    before, later = measured[0], measured[1:]
    after = later[-1] if later else None
    change, rows = (None, 0) if after is None else change_between(path, key, before, after)
    best = best_evaluation(key, [one for one in measured if one.step > 0], saved)
    last = records[-1]["step"]
    return Outcome(
        metric=key,
        before=before,
        after=after,
        change=change,
        rows=rows,
        best=best,
        best_saved=best is not None and best.step in saved,
        no_value=last if last > measured[-1].step else None,
    )


def best_evaluation(key: str, measured: Sequence[Evaluation], saved: Sequence[int] = ()) -> Evaluation | None:
    sign = 1 if lower_is_better(key) else -1
    return min(measured, key=lambda one: (sign * one.value, one.step not in saved, one.step), default=None)


def evaluations_of(path: Path) -> list[Record]:
    """The records of metrics.jsonl with held-out metrics, however long the file is; the last one of each step."""
    by_step = {record["step"]: record for record in _evaluated(path / "metrics.jsonl")}
    return [by_step[step] for step in sorted(by_step)]


def _evaluated(file: Path) -> Iterator[Record]:
    try:
        for line in lines_of(file):
            if b'"eval/' in line:  # only these lines are parsed
                try:
                    yield record_of(line)
                except ValueError:  # damaged
                    continue
    except OSError:
        return


def outcome_metric(config: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> Metric | None:
    """The held-out metric that a run is judged by. Accuracy comes last where answers are free text, which completions
    hardly ever equal: in the built-in tasks of that kind, and in others where it is always 0."""
    keep_best = config.get("keep_best")
    if isinstance(keep_best, str) and any(is_number(record.get(keep_best)) for record in records):
        return metric(keep_best)
    candidates = [one for one in headline_metrics(config, records) if one.key.startswith("eval/")]
    always_zero = not any(record.get("eval/accuracy") for record in records)
    if is_open_task(config) or (has_open_answers(config) and always_zero):
        candidates.sort(key=lambda one: one.key == "eval/accuracy")
    return candidates[0] if candidates else None


def change_between(
    path: Path, key: str, before: Evaluation, after: Evaluation, *, level: float = 0.95
) -> tuple[Interval | None, int]:
    """The change of a metric between two evaluations, and the number of rows it is over; None and 0 where no interval
    is known."""
    steps = (before.step, after.step)
    if (score := SCORES.get(key)) is not None:
        scored = _rows(path, steps)
        first, second = (row_means(scored, score, [step]) for step in steps)
        if names := sorted(first.keys() & second.keys()):
            pairs = [(first[name], second[name]) for name in names]
            scores = [score for pair in pairs for score in pair]
            largest = 1.0 if key == "eval/accuracy" else max(scores) - min(scores)
            return paired_interval([two - one for one, two in pairs], largest, level), len(names)
    rows = rows_in(path, "held_out") if key in SHARES else 0
    return shares_interval(before.value, after.value, rows, level), rows


def _rows(path: Path, steps: Sequence[int]) -> list[EvalRow]:
    try:
        return read_eval_rows(path, steps=steps)
    except UserError:  # damaged samples: there is no interval
        return []


_STORED = TypeAdapter(Outcome)


def outcome_json(outcome: Outcome) -> dict[str, Any]:
    change = None if outcome.change is None else list(outcome.change)
    return {**asdict(outcome), "change": change, "verdict": outcome.verdict}


def stored_outcome(value: Any) -> Outcome | None:
    """As `status.json` has it; None of anything else."""
    if not isinstance(value, dict):
        return None
    try:
        outcome = _STORED.validate_python({name: one for name, one in value.items() if name != "verdict"})
    except ValidationError:
        return None
    numbers = [one.value for one in (outcome.before, outcome.after, outcome.best) if one is not None]
    finite = all(map(is_number, (*numbers, *(outcome.change or ()))))
    return outcome if finite and outcome.rows >= (outcome.change is not None) else None
