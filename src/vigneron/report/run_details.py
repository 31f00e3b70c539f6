"""A run as one looks at it afterwards: read from its folder alone, without torch."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vigneron.config import Config
from vigneron.recipe import load_config, recipe_names
from vigneron.report.curves import series
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.headline_metrics import Shown, lower_is_better, watched_in
from vigneron.run_store.metrics_file import Record, records_of
from vigneron.run_store.notices import Notice, kept_notices
from vigneron.run_store.status import RunStatus, Saved, bytes_in, saved_in, status_of
from vigneron.values import flatten, is_number

# Names, and what an environment variable became: nobody chose these for the run.
RESOLVED = ("recipe", "about", "reward.url", "parent.url")


@dataclass(frozen=True)
class Ends:
    """Of a figure: at the start, and now."""

    label: str
    key: str
    before: float
    after: float


@dataclass(frozen=True)
class LookedAt:
    status: RunStatus
    config: Config
    rows: tuple[int, int]
    """To train on, and held out."""
    changes: dict[str, Any] | None
    """What differs from the built-in recipe of its name; None where there is none."""
    figures: list[Shown]
    records: list[Record]
    notices: list[Notice]
    saved: list[Saved]
    best: int | None
    bytes: int


def look_at(path: Path) -> LookedAt:
    folder = RunFolder.open(path)
    config, records = folder.config(), records_of(folder.path)
    written = config.model_dump(mode="json")
    figures, saved = watched_in(written, records), saved_in(folder.path)
    return LookedAt(
        status=status_of(folder.path),
        config=config,
        rows=(_lines_in(folder.path / "data" / "train.jsonl"), _lines_in(folder.path / "data" / "held_out.jsonl")),
        changes=changed_keys(config),
        figures=figures,
        records=records,
        notices=kept_notices(folder.path),
        saved=saved,
        best=best_step(config.keep_best, figures, records, [one.step for one in saved]),
        bytes=bytes_in(folder.path),
    )


def changed_keys(config: Config) -> dict[str, Any] | None:
    """Keys of which the run has another value than its recipe. None: its recipe is somebody's own file."""
    if config.recipe not in recipe_names():
        return None
    recipe, run = (flatten(c.model_dump(mode="json")) for c in (load_config(config.recipe), config))
    moved = {key: value for key, value in run.items() if recipe.get(key) != value and key not in RESOLVED}
    return {key: value for key, value in moved.items() if not _is_resolved(recipe.get(key), value)}


def _is_resolved(before: Any, after: Any) -> bool:
    """`auto` became something, a path absolute, the folder of a run its newest checkpoint."""
    if not isinstance(before, str) or before == "auto":
        return before == "auto"
    return isinstance(after, str) and "/" in after and before.removeprefix("./") in after


def best_step(
    keep_best: str | None, figures: Sequence[Shown], records: Sequence[Mapping[str, Any]], steps: Sequence[int]
) -> int | None:
    """The best checkpoint by the run's own figure, or by the first held-out one, where two of them were evaluated."""
    key = keep_best or next((figure.key for figure in figures if figure.key.startswith("eval/")), None)
    if key is None:
        return None
    values = {r["step"]: r[key] for r in records if r["step"] in steps and is_number(r.get(key))}
    sign = 1 if lower_is_better(key) else -1
    return min(values, key=lambda step: (sign * values[step], step)) if len(values) > 1 else None


def ends_of(run: LookedAt) -> list[Ends]:
    """Held-out figures before training and at the last evaluation."""
    found = []
    for figure in run.figures:
        _, values = series(run.records, figure.key)
        if figure.key.startswith("eval/") and len(values) > 1:
            found.append(Ends(figure.label, figure.key, values[0], values[-1]))
    return found


def shown_json(run: LookedAt) -> dict[str, Any]:
    status = run.status
    return {
        "name": status.name,
        "path": str(status.path),
        **{key: getattr(status, key) for key in ("state", "error", "step", "steps", "began", "ended", "changed")},
        "config": run.config.model_dump(mode="json"),
        "changed_from_recipe": run.changes,
        "rows": {"train": run.rows[0], "held_out": run.rows[1]},
        "figures": dict(status.figures),
        "before_and_after": {ends.key: [ends.before, ends.after] for ends in ends_of(run)},
        "notices": [asdict(notice) for notice in run.notices],
        "checkpoints": [asdict(one) | {"best": one.step == run.best} for one in run.saved],
        "bytes": run.bytes,
    }


def _lines_in(path: Path) -> int:
    try:
        with path.open("rb") as file:
            return sum(block.count(b"\n") for block in iter(lambda: file.read(2**20), b""))
    except OSError:
        return 0
