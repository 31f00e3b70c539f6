"""Tables for the terminal. Everything a model wrote is shown as text, never as markup."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from vigneron.errors import visible
from vigneron.folder.samples import Sample

__all__ = ["csv_cell", "metrics_table", "samples_table", "visible"]


def samples_table(samples: Sequence[Sample]) -> Table:
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for heading in ("prompt", "completion", "parent", "reward", "right"):
        table.add_column(heading, overflow="fold")
    for sample in samples:
        reward = "missing" if sample.reward is None else f"{sample.reward:.2f}"
        right = {None: "", True: "yes", False: "no"}[sample.correct]
        cells = (sample.prompt, repr(sample.completion), str(sample.answer or ""), reward, right)
        table.add_row(*(Text(visible(cell)) for cell in cells))
    return table


def metrics_table(metrics: Mapping[str, float]) -> Table:
    table = Table(box=None, padding=(0, 2), show_header=False)
    for name, value in metrics.items():
        table.add_row(Text(visible(name)), f"{value:.4g}")
    return table


def csv_cell(value: Any) -> Any:
    """No text begins as a formula would: a spreadsheet would run it."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value
