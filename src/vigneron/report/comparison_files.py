"""A comparison as files and as tables: compare.svg, compare.html, compare.csv, intervals.svg, intervals.csv."""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup
from rich.table import Table
from rich.text import Text

from vigneron.errors import UserError
from vigneron.files import write_for_user
from vigneron.recipe import config_yaml
from vigneron.report.figures import COMPARED, as_svg, comparison_figure, for_page
from vigneron.report.html import rendered
from vigneron.report.interval_figure import bar, interval_figure, panels_of, scale_of
from vigneron.report.paired_intervals import Estimate
from vigneron.run_store.experiment_arms import Arm, differences
from vigneron.run_store.final_metrics import Spread, final_values, row_label, spreads, table_sections
from vigneron.text import to_cell

COLUMNS = ("arm", "figure", "runs", "mean", "std", "min", "max")
PER_RUN = ("steps", "episodes", "seconds", "eval/accuracy_before", "eval/accuracy", "accuracy", "reward")


INTERVAL_COLUMNS = ("metric", "arm", "minus", "mean", "low", "high", "seeds", "rows", "same_seeds")
MOST_DIFFERENCES = 20
"""In the terminal; intervals.csv has all."""
ROOM_TO_DRAW = 150


def write_comparison(arms: Sequence[Arm], out: Path, found: Sequence[Estimate] = ()) -> list[Path]:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot create the folder '{out}': {error.strerror}") from error
    svg = as_svg(comparison_figure(_curves(arms), panels=COMPARED, columns=3, x="episodes"))
    files = {"compare.svg": svg, "compare.html": _page(arms, svg, found), "compare.csv": _csv(COLUMNS, _csv_rows(arms))}
    if found:
        files["intervals.svg"] = as_svg(interval_figure(found))
        files["intervals.csv"] = _csv(INTERVAL_COLUMNS, map(_interval_cells, found))
    for name, text in files.items():
        write_for_user(out / name, text)
    return [out / name for name in files]


def comparison_table(arms: Sequence[Arm]) -> Table:
    """For the terminal: one column per arm, mean ± standard deviation over its runs."""
    table = Table(box=None, padding=(0, 2), header_style="bold")
    table.add_column("")
    for arm in arms:
        table.add_column(Text(heading(arm)), justify="right", overflow="fold")
    for section, rows in _sections(arms):
        table.add_row(Text(section, style="dim"))
        for title, cells in rows:
            table.add_row(Text(f"  {title}"), *cells)
    return table


def intervals_table(found: Sequence[Estimate], width: int | None = None) -> Table | None:
    """For a terminal of a width: 95 % intervals of the arms and of their differences, drawn where there is room; None
    of none."""
    differences = [one for one in found if one.minus is not None]
    shown = [one for one in found if one.minus is None] + differences[:MOST_DIFFERENCES]
    if not shown:
        return None
    caption = f"{len(differences) - MOST_DIFFERENCES} more differences are in intervals.csv"
    table = Table(box=None, padding=(0, 2), header_style="bold", title_justify="left", caption_justify="left")
    table.caption = caption if len(differences) > MOST_DIFFERENCES else None
    for name in ("95 % intervals, held out", "", "mean and interval"):
        table.add_column(name, overflow="fold")
    drawn = width is None or width >= ROOM_TO_DRAW
    for name in ("", "each seed", "over")[not drawn :]:
        table.add_column(name, overflow="fold")
    for panel in panels_of(shown):
        scale = scale_of(panel)
        for one in panel:
            value = one.value.replace("[", r"\[")
            label = Text(f"  {one.label}", style="dim")
            bars = [bar(one, scale)] if drawn else []
            table.add_row(label, Text(one.of), value, *bars, one.seed_values, one.covers)
    return table


def heading(arm: Arm) -> str:
    return arm.name if len(arm.runs) == 1 else f"{arm.name} ({len(arm.runs)} seeds)"


def _curves(arms: Sequence[Arm]) -> dict[str, list[list[dict[str, Any]]]]:
    return {heading(arm): [run.records for run in arm.runs] for arm in arms}


def _sections(arms: Sequence[Arm]) -> list[tuple[str, list[tuple[str, list[str]]]]]:
    """(section, its rows), without the metrics that no arm has."""
    by_arm = [spreads(arm) for arm in arms]
    keys = dict.fromkeys(key for of_arm in by_arm for key in of_arm)
    return [
        (section, [(row_label(key), [format_spread(of_arm.get(key)) for of_arm in by_arm]) for key in of])
        for section, of in table_sections(keys).items()
        if of
    ]


def format_spread(spread: Spread | None) -> str:
    """As in `0.612 ± 0.021`."""
    if spread is None:
        return "–"
    return format_number(spread.mean) + (f" ± {format_number(spread.std)}" if spread.std is not None else "")


def format_number(value: float) -> str:
    if value == int(value) and (isinstance(value, int) or value == 0):
        return f"{int(value):,}"
    size = abs(value)
    return f"{value:,.0f}" if size >= 10_000 else f"{value:.2e}" if size < 0.0005 else f"{value:.3f}"


def _csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()


def _interval_cells(one: Estimate) -> tuple[Any, ...]:
    names = (to_cell(name or "") for name in (one.arm, one.minus))
    return (one.metric, *names, *one.interval, one.seeds, one.rows, int(one.same_seeds))


def _csv_rows(arms: Sequence[Arm]) -> Iterator[tuple[Any, ...]]:
    """Every metric of every arm, unrounded."""
    for arm in arms:
        for key, spread in spreads(arm).items():
            yield (to_cell(arm.name), to_cell(key), *spread)


def _intervals_svg(intervals: Sequence[Estimate]) -> Markup:
    return Markup(for_page(as_svg(interval_figure(intervals)), "intervals", "Held-out means and their 95 % intervals"))


def _page(arms: Sequence[Arm], svg: str, found: Sequence[Estimate]) -> str:
    return rendered(
        "compare.html",
        title=" and ".join(arm.name for arm in arms),
        figure=Markup(for_page(svg)),
        headings=[heading(arm) for arm in arms],
        sections=_sections(arms),
        intervals=found,
        interval_figure=_intervals_svg(found) if found else "",
        differences=differences(arms),
        per_run=PER_RUN,
        runs=[
            {
                "name": run.path.resolve().name,
                "arm": arm.name,
                "seed": run.config.seed,
                "values": ["–" if (v := values[key]) is None else format_number(v) for key in PER_RUN],
            }
            for arm in arms
            for run in arm.runs
            for values in [final_values(run)]
        ],
        configs=[(arm.name, config_yaml(arm.runs[0].config)) for arm in arms],
    )
