"""Tables for the terminal. Everything a model wrote is shown as text, never as markup."""

from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

from vigneron.folder.samples import Sample


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


def visible(text: str) -> str:
    """Control characters, which could move the cursor or recolour the terminal, as escapes."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def plain(text: str) -> str:
    """Lines stay lines; what could hide or turn text around is shown as an escape."""
    return "\n".join("\t".join(visible(part) for part in line.split("\t")) for line in text.split("\n"))


def metrics_table(metrics: Mapping[str, float]) -> Table:
    table = Table(box=None, padding=(0, 2), show_header=False)
    for name, value in metrics.items():
        table.add_row(name, f"{value:.4g}")
    return table
