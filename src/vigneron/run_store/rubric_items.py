"""A rubric's items and categories in numbers: first and last scores, and which items are weak.

Pure: a run's logged values in, rows of a table out. None: there is nothing to measure.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from vigneron.errors import UserError
from vigneron.rubric.model import AnyItem, Rubric
from vigneron.rubric.read import normalised, read_rubric
from vigneron.run_store.series import Records, series
from vigneron.run_store.stability import final_window

TRAINING_PREFIX, HELD_OUT_PREFIX, HELD_OUT_RUBRIC_PREFIX = "reward/", "eval/reward/", "eval/held_out_rubric/"
CANARY_PREFIX, LARGEST_CANARY = "eval/canary/", "eval/canary/largest"
ITEM_METRICS = ("score", "spread", "confidence", "failed", "share")


class ItemKey(NamedTuple):
    category: str
    item: str

    def under(self, prefix: str, name: str) -> str:
        return f"{prefix}{self.category}/{self.item}/{name}"


def all_keys(records: Iterable[Mapping[str, object]]) -> dict[str, None]:
    """Each once, in the order of first appearance."""
    return dict.fromkeys(key for record in records for key in record)


def items_of(keys: Iterable[str], prefix: str = TRAINING_PREFIX) -> list[ItemKey]:
    parts = [key.removeprefix(prefix).split("/") for key in keys if key.startswith(prefix)]
    return list(dict.fromkeys(ItemKey(p[0], p[1]) for p in parts if len(p) == 3 and p[2] in ITEM_METRICS))


def category_rewards(keys: Iterable[str], prefix: str = TRAINING_PREFIX) -> dict[str, str]:
    """Each category with the key of its mean reward."""
    parts = {key: key.removeprefix(prefix).split("/") for key in keys if key.startswith(prefix)}
    return {p[0]: key for key, p in parts.items() if len(p) == 2 and p[1] == "reward"}


def canaries(keys: Iterable[str]) -> dict[str, str]:
    """Each category with the key of its canaries' mean reward."""
    return {
        key.removeprefix(CANARY_PREFIX): key for key in keys if key.startswith(CANARY_PREFIX) and key != LARGEST_CANARY
    }


def readable_rubric(path: Path) -> Rubric | None:
    """The run's copy of its rubric; None where it was edited and is broken, which a report ignores."""
    try:
        return normalised(read_rubric(path, in_run=True))[0]
    except UserError:
        return None


LOW_CONFIDENCE = 0.5
FAILS_OFTEN = 0.05
SAME = 1e-6


class Ends(NamedTuple):
    first: float | None = None
    last: float | None = None


@dataclass(frozen=True)
class ItemRow:
    category: str
    item: str
    flow: str | None
    weight: float | None
    """None: the run's rubric no longer has this item."""
    score: Ends
    spread: float | None
    confidence: float | None
    failed: int
    judged: int | None
    share: float | None
    weak: tuple[str, ...]


@dataclass(frozen=True)
class CategoryRow:
    name: str
    training: Ends
    held_out: Ends
    held_out_rubric: Ends
    canary: Ends


def items_in_order(records: Records, rubric: Rubric | None) -> list[ItemKey]:
    """The items scored, by category, in the rubric's order; items that it no longer has come last."""
    keys = all_keys(records)
    items = list(dict.fromkeys((*items_of(keys), *items_of(keys, HELD_OUT_PREFIX))))
    places = {key: place for place, key in enumerate(_known(rubric))}
    categories = list(dict.fromkeys(key.category for key in (*places, *items)))
    return sorted(items, key=lambda key: (categories.index(key.category), places.get(key, len(places))))


def _known(rubric: Rubric | None) -> dict[ItemKey, AnyItem]:
    categories = {} if rubric is None else rubric.categories
    return {ItemKey(name, item.name): item for name, category in categories.items() for item in category.items}


def source_of(records: Records, category: str) -> str:
    """Prefix of the metrics shown for a category: held out where it was evaluated at least twice, else training."""
    key = category_rewards(all_keys(records), HELD_OUT_PREFIX).get(category)
    return HELD_OUT_PREFIX if key is not None and len(series(records, key)[1]) > 1 else TRAINING_PREFIX


def item_rows(records: Records, rubric: Rubric | None, judged: Mapping[ItemKey, int] | None = None) -> list[ItemRow]:
    """`judged`: the number of samples that each item judged, where it is known."""
    known = _known(rubric)
    sources: dict[str, str] = {}
    rows = []
    for key in items_in_order(records, rubric):
        source = sources.setdefault(key.category, source_of(records, key.category))
        item = known.get(key)
        rows.append(_row(records, key, source, item, (judged or {}).get(key)))
    return rows


def _row(records: Records, key: ItemKey, source: str, item: AnyItem | None, judged: int | None) -> ItemRow:
    def values(prefix: str, name: str) -> list[float]:
        return series(records, key.under(prefix, name))[1]

    trained = TRAINING_PREFIX if values(TRAINING_PREFIX, "score") else HELD_OUT_PREFIX
    confidences, shares = values(trained, "confidence"), values(TRAINING_PREFIX, "share")
    confidence = fmean(confidences) if confidences else None
    failed = int(sum(values(TRAINING_PREFIX, "failed")) + sum(values(HELD_OUT_PREFIX, "failed")))
    scores = values(trained, "score")
    marks = {
        "never varies": never_varies(scores, values(trained, "spread")),
        "low confidence": confidence is not None and confidence < LOW_CONFIDENCE,
        "fails often": not scores or (judged is not None and failed > FAILS_OFTEN * judged),
    }
    return ItemRow(
        key.category,
        key.item,
        item.flow if item is not None else None,
        item.weight if item is not None else None,
        ends(values(source, "score"), exact=source == HELD_OUT_PREFIX),
        ends(values(source, "spread"), exact=source == HELD_OUT_PREFIX).last,
        confidence,
        failed,
        judged,
        fmean(shares) if shares else None,
        tuple(mark for mark, holds in marks.items() if holds),
    )


def never_varies(scores: Sequence[float], spreads: Sequence[float]) -> bool:
    """Whether every sample of the run got the same score."""
    return bool(scores) and max(spreads, default=0.0) < SAME and max(scores) - min(scores) < SAME


def ends(values: Sequence[float], *, exact: bool) -> Ends:
    """exact: the first and the last value. Otherwise means over as many steps as a final metric is a mean of, without
    overlap. A single value is the first one."""
    if len(values) < 2:
        return Ends(*values)
    width = 1 if exact else min(final_window(len(values)), len(values) // 2)
    return Ends(fmean(values[:width]), fmean(values[-width:]))


def category_rows(records: Records) -> list[CategoryRow]:
    """All categories together first, then each one."""
    keys = all_keys(records)
    by_place = {
        prefix: category_rewards(keys, prefix) for prefix in (TRAINING_PREFIX, HELD_OUT_PREFIX, HELD_OUT_RUBRIC_PREFIX)
    } | {CANARY_PREFIX: canaries(keys)}

    def row(name: str, *columns: str | None) -> CategoryRow:
        curves = [series(records, key)[1] if key is not None else [] for key in columns]
        return CategoryRow(name, *(ends(values, exact=place > 0) for place, values in enumerate(curves)))

    names = dict.fromkeys(name for place in by_place.values() for name in place)
    whole = row("all categories", "reward", "eval/reward", f"{HELD_OUT_RUBRIC_PREFIX}reward", None)
    return [whole, *(row(name, *(place.get(name) for place in by_place.values())) for name in names)]
