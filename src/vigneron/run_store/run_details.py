"""What `vigneron show` prints: a run read from its folder, without torch."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vigneron.config import Config
from vigneron.recipe import load_config, recipe_names
from vigneron.run_store.damage import damage_of
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.headline_metrics import headline_metrics
from vigneron.run_store.metric_table import Metric, lower_is_better
from vigneron.run_store.metrics_file import Record, records_of
from vigneron.run_store.notices import Notice, kept_notices
from vigneron.run_store.outcome import Outcome, evaluations_of, outcome_json, outcome_of
from vigneron.run_store.outcome_text import outcome_text
from vigneron.run_store.series import series
from vigneron.run_store.status import RunStatus, SavedCheckpoint, bytes_in, rows_in, saved_checkpoints, status_of
from vigneron.values import flatten, is_number

# Names, and values that come from the environment: not changes to the recipe.
NOT_CHANGES = ("recipe", "about", "reward.url", "parent.url")


@dataclass(frozen=True)
class BeforeAndAfter:
    """A metric at the first and at the last evaluation."""

    label: str
    key: str
    before: float
    after: float


@dataclass(frozen=True)
class RunDetails:
    status: RunStatus
    config: Config
    rows: tuple[int, int]
    """Number of training rows and of held-out rows."""
    changes: dict[str, Any] | None
    """Keys that differ from the built-in recipe of its name; None where there is no such recipe."""
    metrics: list[Metric]
    """Its headline metrics."""
    records: list[Record]
    notices: list[Notice]
    saved: list[SavedCheckpoint]
    best: int | None
    outcome: Outcome
    bytes: int
    start: dict[str, float]
    """Seconds from its newest start to the end of the step after it, by phase."""


def run_details(path: Path) -> RunDetails:
    folder = RunFolder.open(path)
    config, records = folder.config(), records_of(folder.path)
    written = config.model_dump(mode="json")
    metrics, saved = headline_metrics(written, records), saved_checkpoints(folder.path)
    status = status_of(folder.path)
    return RunDetails(
        status=status,
        config=config,
        rows=(rows_in(folder.path, "train"), rows_in(folder.path, "held_out")),
        changes=changed_keys(config),
        metrics=metrics,
        records=records,
        notices=[*kept_notices(folder.path), *(Notice(0, line, "warning") for line in damage_of(folder.path))],
        saved=saved,
        best=best_step(config.keep_best, metrics, evaluations_of(folder.path), [one.step for one in saved]),
        outcome=outcome_of(status),
        bytes=bytes_in(folder.path),
        start=start_seconds(folder),
    )


def start_seconds(folder: RunFolder) -> dict[str, float]:
    """Of the newest start of the run; empty for runs of earlier versions."""
    starts = [record["start"] for record in folder.records("timings.jsonl") if isinstance(record.get("start"), dict)]
    return {str(name): float(value) for name, value in starts[-1].items() if is_number(value)} if starts else {}


def changed_keys(config: Config) -> dict[str, Any] | None:
    """Keys whose value differs from the recipe's. None: the recipe is not a built-in one."""
    if config.recipe not in recipe_names():
        return None
    recipe, run = (flatten(c.model_dump(mode="json")) for c in (load_config(config.recipe), config))
    moved = {key: value for key, value in run.items() if recipe.get(key) != value and key not in NOT_CHANGES}
    return {key: value for key, value in moved.items() if not _is_resolved(recipe.get(key), value)}


def _is_resolved(before: Any, after: Any) -> bool:
    """Whether the value is the recipe's, resolved: `auto`, a relative path, a run's newest checkpoint."""
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return all(_is_same(*both) for both in zip(before, after, strict=True))
    if isinstance(before, Mapping) and isinstance(after, Mapping) and before.keys() == after.keys():
        return all(_is_same(before[key], after[key]) for key in before)
    if not isinstance(before, str) or before == "auto":
        return before == "auto"
    return isinstance(after, str) and "/" in after and before.removeprefix("./") in after


def _is_same(before: Any, after: Any) -> bool:
    return before == after or _is_resolved(before, after)


def best_step(
    keep_best: str | None, metrics: Sequence[Metric], records: Sequence[Mapping[str, Any]], steps: Sequence[int]
) -> int | None:
    """The best checkpoint by `keep_best`, or by the first held-out metric, where at least two were evaluated."""
    key = keep_best or next((one.key for one in metrics if one.key.startswith("eval/")), None)
    if key is None:
        return None
    values = {r["step"]: r[key] for r in records if r["step"] in steps and is_number(r.get(key))}
    sign = 1 if lower_is_better(key) else -1
    return min(values, key=lambda step: (sign * values[step], step)) if len(set(values.values())) > 1 else None


def before_and_after(run: RunDetails) -> list[BeforeAndAfter]:
    """Held-out metrics before training and at the last evaluation."""
    changes = []
    for metric in run.metrics:
        _, values = series(run.records, metric.key)
        if metric.key.startswith("eval/") and len(values) > 1:
            changes.append(BeforeAndAfter(metric.label, metric.key, values[0], values[-1]))
    return changes


def details_json(run: RunDetails) -> dict[str, Any]:
    status = run.status
    return {
        "name": status.name,
        "path": str(status.path),
        **{key: getattr(status, key) for key in ("state", "error", "step", "steps", "began", "ended", "changed")},
        "config": run.config.model_dump(mode="json"),
        "changed_from_recipe": run.changes,
        "rows": {"train": run.rows[0], "held_out": run.rows[1]},
        "figures": dict(status.metrics),
        "outcome": {**outcome_json(run.outcome), "text": outcome_text(run.outcome)},
        "before_and_after": {one.key: [one.before, one.after] for one in before_and_after(run)},
        "notices": [asdict(notice) for notice in run.notices],
        "checkpoints": [asdict(one) | {"best": one.step == run.best} for one in run.saved],
        "bytes": run.bytes,
    }
