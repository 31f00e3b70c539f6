"""A comparison as files and as a table: compare.svg, compare.html, compare.csv."""

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup
from rich.table import Table
from rich.text import Text

from vigneron.errors import UserError
from vigneron.files import write_for_user
from vigneron.recipe import config_yaml
from vigneron.run_store.experiment_arms import Arm, differences
from vigneron.report.figures import COMPARED, as_svg, comparison_figure, on_a_page
from vigneron.run_store.final_metrics import SECTIONS, held_out_titles, number, shown, spreads, training_titles, values_of
from vigneron.report.html import rendered
from vigneron.text import to_cell

COLUMNS = ("arm", "figure", "runs", "mean", "std", "min", "max")
PER_RUN = ("steps", "episodes", "seconds", "eval/accuracy_before", "eval/accuracy", "accuracy", "reward")


def write_comparison(arms: Sequence[Arm], out: Path) -> list[Path]:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot create the folder '{out}': {error.strerror}") from error
    svg = as_svg(comparison_figure(_curves(arms), panels=COMPARED, columns=3, x="episodes"))
    files = {"compare.svg": svg, "compare.html": _page(arms, svg), "compare.csv": _csv(arms)}
    for name, text in files.items():
        write_for_user(out / name, text)
    return [out / name for name in files]


def comparison_table(arms: Sequence[Arm]) -> Table:
    """For the terminal: a column an arm, mean ± standard deviation over its runs."""
    table = Table(box=None, padding=(0, 2), header_style="bold")
    table.add_column("")
    for arm in arms:
        table.add_column(Text(heading(arm)), justify="right", overflow="fold")
    for section, rows in _sections(arms):
        table.add_row(Text(section, style="dim"))
        for title, cells in rows:
            table.add_row(Text(f"  {title}"), *cells)
    return table


def heading(arm: Arm) -> str:
    return arm.name if len(arm.runs) == 1 else f"{arm.name} ({len(arm.runs)} seeds)"


def _curves(arms: Sequence[Arm]) -> dict[str, list[list[dict[str, Any]]]]:
    return {heading(arm): [run.records for run in arm.runs] for arm in arms}


def _sections(arms: Sequence[Arm]) -> list[tuple[str, list[tuple[str, list[str]]]]]:
    """(section, its rows), without the figures that no arm has."""
    found = [spreads(arm) for arm in arms]
    keys = dict.fromkeys(key for of in found for key in of)
    rubrics = {"held out, greedy, last": held_out_titles(keys), "training, last 5 %": training_titles(keys)}
    sections = [
        (
            name,
            [
                (title, [shown(of.get(key)) for of in found])
                for key, title in (*figures, *rubrics.get(name, ()))
                if key in keys
            ],
        )
        for name, figures in SECTIONS.items()
    ]
    return [(name, rows) for name, rows in sections if rows]


def _csv(arms: Sequence[Arm]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(_csv_rows(arms))
    return text.getvalue()


def _csv_rows(arms: Sequence[Arm]) -> Iterator[tuple[Any, ...]]:
    """Every figure of every arm that has it, to the last digit."""
    for arm in arms:
        for figure, spread in spreads(arm).items():
            yield (to_cell(arm.name), to_cell(figure), *spread)


def _page(arms: Sequence[Arm], svg: str) -> str:
    return rendered(
        "compare.html",
        title=" and ".join(arm.name for arm in arms),
        figure=Markup(on_a_page(svg)),
        headings=[heading(arm) for arm in arms],
        sections=_sections(arms),
        differences=differences(arms),
        per_run=PER_RUN,
        runs=[
            {
                "name": run.path.resolve().name,
                "arm": arm.name,
                "seed": run.config.seed,
                "values": ["–" if (v := values[key]) is None else number(v) for key in PER_RUN],
            }
            for arm in arms
            for run in arm.runs
            for values in [values_of(run)]
        ],
        configs=[(arm.name, config_yaml(arm.runs[0].config)) for arm in arms],
    )
