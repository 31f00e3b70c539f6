"""The part of a run's report that is there when its reward is a rubric."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from markupsafe import Markup

from vigneron.config import Config
from vigneron.errors import UserError
from vigneron.run_store.series import Records, series
from vigneron.report.figures import Panel, as_svg, comparison_figure, on_a_page
from vigneron.run_store.rubric_items import (
    HELD_OUT_PREFIX,
    LARGEST_CANARY,
    TRAINING_PREFIX,
    CategoryRow,
    Ends,
    ItemKey,
    ItemRow,
    category_rows,
    ends,
    item_rows,
    source_of,
)
from vigneron.run_store.rubric_samples import Stage, stages
from vigneron.rubric.model import Rubric
from vigneron.rubric.read import normalised, read_rubric
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.samples import SampleStore


@dataclass(frozen=True)
class OriginRow:
    when: str
    fresh: int
    revised: int
    demonstrated: int
    gap: float | None
    """Nats a token between the text that a response was drawn under and the one it is trained under."""


def origin_rows(records: Records, responses_per_step: int) -> list[OriginRow]:
    """The first step, the last and all of them; nothing for a run that did not mix."""
    steps = [record for record in records if record.get("origin/revised") is not None]
    if not steps:
        return []
    several = {"last step": steps[-1:], f"all {len(steps):,} steps": steps} if len(steps) > 1 else {}
    parts = {"first step": steps[:1], **several}
    return [_row(when, some, responses_per_step) for when, some in parts.items()]


def _row(when: str, steps: Records, size: int) -> OriginRow:
    revised, demonstrated = (
        sum(round(share * size) for share in series(steps, f"origin/{origin}")[1])
        for origin in ("revised", "demonstrated")
    )
    gaps = series(steps, "drawn/gap")[1]
    return OriginRow(
        when, len(steps) * size - revised - demonstrated, revised, demonstrated, fmean(gaps) if gaps else None
    )


MOST_FIGURES = 12
MOST_LINES = 12
"""More of them nobody can tell apart; the table has all."""


@dataclass(frozen=True)
class Drawn:
    category: str
    figure: Markup
    items: int
    left_out: int


@dataclass(frozen=True)
class RubricPart:
    categories: list[CategoryRow]
    largest_canary: Ends
    items: list[ItemRow]
    figures: list[Drawn]
    not_drawn: int
    origins: list[OriginRow]
    stages: list[Stage]


def rubric_part(folder: RunFolder, config: Config, records: Records) -> RubricPart | None:
    """None for a run of another reward, and for one that has scored nothing yet."""
    if config.reward.kind != "rubric":
        return None
    rubric = readable_rubric(folder.rubric)
    if not (rows := item_rows(records, rubric)):
        return None
    asked, shown = _kept(folder.path, any(row.failed for row in rows))
    rows = item_rows(records, rubric, asked) if asked else rows
    by_category: dict[str, list[ItemRow]] = {}
    for row in rows:
        by_category.setdefault(row.category, []).append(row)
    drawn = [category_drawn(records, name, some) for name, some in list(by_category.items())[:MOST_FIGURES]]
    return RubricPart(
        category_rows(records),
        ends(series(records, LARGEST_CANARY)[1], exact=True),
        rows,
        drawn,
        len(by_category) - len(drawn),
        origin_rows(records, config.prompts_per_step * config.group_size),
        shown,
    )


def readable_rubric(path: Path) -> Rubric | None:
    """The run's own copy may have been changed since: a report does without a broken one."""
    try:
        return normalised(read_rubric(path))[0]
    except UserError:
        return None


def _kept(folder: Path, some_failed: bool) -> tuple[dict[ItemKey, int], list[Stage]]:
    """How often each item was asked is counted only where it matters: that reads every sample."""
    if not (folder / "samples.sqlite").is_file():
        return {}, []
    store = SampleStore(folder, read_only=True)
    try:
        asked = {ItemKey(*key): count for key, count in store.times_asked().items()} if some_failed else {}
        return asked, stages(store)
    finally:
        store.close()


def category_drawn(records: Records, category: str, rows: Sequence[ItemRow]) -> Drawn:
    """One colour an item: its mean score, its confidence, and its share of the advantages."""
    source = source_of(records, category)
    held_out = source == HELD_OUT_PREFIX
    panels = (
        Panel(f"mean score ({'held out, greedy' if held_out else 'training'})", "score", measured=held_out),
        Panel(f"mean confidence ({'held out' if held_out else 'training'})", "confidence", measured=held_out),
        Panel("share of the advantage (training)", "share"),
    )
    drawn = {row.item: [_of_item(records, ItemKey(category, row.item), source)] for row in rows[:MOST_LINES]}
    figure = comparison_figure(drawn, panels=panels, columns=3)
    return Drawn(category, Markup(on_a_page(as_svg(figure))), len(drawn), len(rows) - len(drawn))


def _of_item(records: Records, key: ItemKey, source: str) -> list[Mapping[str, Any]]:
    """As if the run had this item alone."""
    names = {
        "score": key.under(source, "score"),
        "confidence": key.under(source, "confidence"),
        "share": key.under(TRAINING_PREFIX, "share"),
    }
    return [{"step": record["step"], **{name: record.get(k) for name, k in names.items()}} for record in records]
