"""Rubrics on the terminal."""

from rich.table import Table
from rich.text import Text

from vigneron.rubric.model import Rubric


def rubric_table(rubric: Rubric) -> Table:
    """A line for each item; its category's name stands beside the first one."""
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for heading in ("category", "item", "flow"):
        table.add_column(heading, overflow="fold")
    table.add_column("weight", justify="right")
    for name, category in rubric.categories.items():
        for place, item in enumerate(category.items):
            cells = ("" if place else name, item.name, item.flow, f"{item.weight:.3g}")
            table.add_row(*map(Text, cells))
    return table
