"""The rubric items of a run for its page: the same rows as in the report, from curves that may be thinned."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vigneron.run_store.curves import Curves, curves_of
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.rubric_items import (
    HELD_OUT_PREFIX,
    TRAINING_PREFIX,
    ItemKey,
    ItemRow,
    item_rows,
    items_of,
    readable_rubric,
)
from vigneron.run_store.sample_search import SampleSearch

MAX_COUNTED = 20_000
"""Samples up to which the samples judged by each item are counted, which reads all of them."""


def items_of_run(folder: Path) -> list[ItemRow]:
    """Weak items first. Empty for a run without a rubric."""
    curves, _ = curves_of(folder)
    if curves is None:
        return []
    try:
        records = _records(curves)
    finally:
        curves.close()
    rubric = readable_rubric(RunFolder(folder).rubric)
    rows = item_rows(records, rubric)
    if any(row.failed for row in rows):
        rows = item_rows(records, rubric, _judged_counts(folder))
    return sorted(rows, key=lambda row: not row.weak)


def _records(curves: Curves) -> list[Mapping[str, Any]]:
    """Like the records of metrics.jsonl; of a long run, means over several steps, and sums of failures."""
    names = [name for name in curves.names() if name.startswith((TRAINING_PREFIX, HELD_OUT_PREFIX))]
    if not items_of(names) and not items_of(names, HELD_OUT_PREFIX):
        return []
    records: dict[float, dict[str, Any]] = {}
    for name, curve in curves.read(names).items():
        for step, mean, count in zip(curve.steps, curve.means, curve.counts, strict=True):
            record = records.setdefault(step, {"step": step})
            record[name] = mean * count if name.endswith("/failed") else mean
    return [records[step] for step in sorted(records)]


def _judged_counts(folder: Path) -> dict[ItemKey, int]:
    if not (folder / "samples.sqlite").is_file():
        return {}
    with SampleSearch(folder) as store:
        if not store.has_at_most(MAX_COUNTED):
            return {}
        return {ItemKey(*key): count for key, count in store.judged_counts().items()}
