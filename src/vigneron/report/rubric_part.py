"""The rubric part of a run's report: categories, items, origins of the responses, samples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from markupsafe import Markup

from vigneron.config import Config
from vigneron.report.figures import Panel, as_svg, comparison_figure, for_page
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.metric_table import metric
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
    readable_rubric,
    source_of,
)
from vigneron.run_store.rubric_samples import Stage, stages
from vigneron.run_store.samples import SampleStore
from vigneron.run_store.series import Records, series


@dataclass(frozen=True)
class OriginRow:
    when: str
    fresh: int
    revised: int
    demonstrated: int
    gap: float | None
    """`drawn/gap`: nats per token between the prompt sampled with and the prompt trained with."""


def origin_rows(records: Records, responses_per_step: int) -> list[OriginRow]:
    """The first step, the last and all of them; empty for a run without revisions or demonstrations."""
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


MAX_PLOTS = 12
MAX_LINES = 12
"""Lines in one plot: more cannot be distinguished. The table has all items."""


@dataclass(frozen=True)
class CategoryPlot:
    category: str
    figure: Markup
    items: int
    left_out: int


@dataclass(frozen=True)
class RubricPart:
    categories: list[CategoryRow]
    largest_canary: Ends
    items: list[ItemRow]
    plots: list[CategoryPlot]
    not_plotted: int
    origins: list[OriginRow]
    stages: list[Stage]


def rubric_part(folder: RunFolder, config: Config, records: Records) -> RubricPart | None:
    """None for a run with another reward, or without scores yet."""
    if config.reward.kind != "rubric":
        return None
    rubric = readable_rubric(folder.rubric)
    if not (rows := item_rows(records, rubric)):
        return None
    judged, shown = _read_samples(folder.path, any(row.failed for row in rows))
    rows = item_rows(records, rubric, judged) if judged else rows
    by_category: dict[str, list[ItemRow]] = {}
    for row in rows:
        by_category.setdefault(row.category, []).append(row)
    plots = [category_plot(records, name, some) for name, some in list(by_category.items())[:MAX_PLOTS]]
    return RubricPart(
        category_rows(records),
        ends(series(records, LARGEST_CANARY)[1], exact=True),
        rows,
        plots,
        len(by_category) - len(plots),
        origin_rows(records, config.prompts_per_step * config.group_size),
        shown,
    )


def _read_samples(folder: Path, some_failed: bool) -> tuple[dict[ItemKey, int], list[Stage]]:
    """(samples judged by each item, samples to show). The former reads every sample: only where an item failed."""
    if not (folder / "samples.sqlite").is_file():
        return {}, []
    store = SampleStore(folder, read_only=True)
    try:
        judged = {ItemKey(*key): count for key, count in store.judged_counts().items()} if some_failed else {}
        return judged, stages(store)
    finally:
        store.close()


def category_plot(records: Records, category: str, rows: Sequence[ItemRow]) -> CategoryPlot:
    """One colour per item: its mean score, its confidence, and its share of the advantages."""
    source = source_of(records, category)
    held_out = source == HELD_OUT_PREFIX
    panels = (
        _item_panel("score", "held out, greedy" if held_out else "training", measured=held_out),
        _item_panel("confidence", "held out" if held_out else "training", measured=held_out),
        _item_panel("share", "training"),
    )
    drawn = {row.item: [_of_item(records, ItemKey(category, row.item), source)] for row in rows[:MAX_LINES]}
    figure = comparison_figure(drawn, panels=panels, columns=3)
    return CategoryPlot(category, Markup(for_page(as_svg(figure))), len(drawn), len(rows) - len(drawn))


def _item_panel(name: str, where: str, *, measured: bool = False) -> Panel:
    return Panel(f"{metric(f'reward/CATEGORY/ITEM/{name}').panel} ({where})", name, measured=measured)


def _of_item(records: Records, key: ItemKey, source: str) -> list[Mapping[str, Any]]:
    """Records of this item alone, under the names of the panels."""
    names = {
        "score": key.under(source, "score"),
        "confidence": key.under(source, "confidence"),
        "share": key.under(TRAINING_PREFIX, "share"),
    }
    return [{"step": record["step"], **{name: record.get(k) for name, k in names.items()}} for record in records]
