"""A rubric's items for the page of a run: the report's own rows, from curves that may be thinned out."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vigneron.errors import UserError
from vigneron.run_store.rubric_items import HELD_OUT_PREFIX, TRAINING_PREFIX, ItemKey, ItemRow, item_rows, items_of
from vigneron.rubric.model import Rubric
from vigneron.rubric.read import normalised, read_rubric
from vigneron.run_store.curves import Curves, curves_of
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.sample_search import SampleSearch

COUNTED_AMONG = 20_000
"""How often an item was asked is counted only among so few samples: it reads them all."""


def items_of_run(folder: Path) -> list[ItemRow]:
    """The weak ones first. None for a run of another reward."""
    curves, _ = curves_of(folder)
    if curves is None:
        return []
    try:
        records = _records(curves)
    finally:
        curves.close()
    rubric = _rubric(RunFolder(folder).rubric)
    rows = item_rows(records, rubric)
    if any(row.failed for row in rows):
        rows = item_rows(records, rubric, _asked(folder))
    return sorted(rows, key=lambda row: not row.weak)


def _records(curves: Curves) -> list[Mapping[str, Any]]:
    """As metrics.jsonl has them: a long run's are means of stretches, and its failures are counted together."""
    names = [name for name in curves.names() if name.startswith((TRAINING_PREFIX, HELD_OUT_PREFIX))]
    if not items_of(names) and not items_of(names, HELD_OUT_PREFIX):
        return []
    records: dict[float, dict[str, Any]] = {}
    for name, curve in curves.read(names).items():
        for step, mean, count in zip(curve.steps, curve.means, curve.counts, strict=True):
            record = records.setdefault(step, {"step": step})
            record[name] = mean * count if name.endswith("/failed") else mean
    return [records[step] for step in sorted(records)]


def _rubric(path: Path) -> Rubric | None:
    """The run's own copy may have been changed since: a page does without a broken one."""
    try:
        return normalised(read_rubric(path))[0]
    except UserError:
        return None


def _asked(folder: Path) -> dict[ItemKey, int]:
    if not (folder / "samples.sqlite").is_file():
        return {}
    with SampleSearch(folder) as store:
        if not store.are_few(COUNTED_AMONG):
            return {}
        return {ItemKey(*key): count for key, count in store.times_asked().items()}
