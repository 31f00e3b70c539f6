"""Tables for the terminal. Text written by a model is never markup."""

from collections.abc import Iterator, Mapping, Sequence

from rich.table import Table
from rich.text import Text

from vigneron.errors import visible
from vigneron.run_store.samples import Sample

SIDE = "side"
NARROW = 70
"""Below this width of the terminal, samples are lines instead of a table."""


def samples_table(samples: Sequence[Sample], *, rewarded: bool = True, longest: int | None = None) -> Table:
    """With the columns that these samples have; `rewarded=False` for given texts."""
    columns = _columns(samples, rewarded)
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for heading in columns:
        table.add_column(heading, overflow="fold")
    for sample in samples:
        table.add_row(*(Text(truncate(visible(_cell(sample, heading)), longest)) for heading in columns))
    return table


def samples_lines(samples: Sequence[Sample], width: int, *, rewarded: bool = True) -> Iterator[Text]:
    """For a narrow terminal: one line for the prompt, one for the completion with its reward."""
    columns = _columns(samples, rewarded)
    for sample in samples:
        yield Text(truncate(visible(sample.prompt), width), style="dim", no_wrap=True)
        rest = [f"{heading} {_cell(sample, heading)}" for heading in columns[2:] if _cell(sample, heading)]
        line = "  ".join((_cell(sample, "completion"), *map(visible, rest)))
        yield Text("  " + truncate(visible(line), width - 2), no_wrap=True)


def truncate(text: str, longest: int | None) -> str:
    return text if longest is None or len(text) <= longest else text[: max(0, longest - 1)] + "…"


def metrics_table(metrics: Mapping[str, float]) -> Table:
    table = Table(box=None, padding=(0, 2), show_header=False)
    for name, value in metrics.items():
        table.add_row(Text(visible(name)), f"{value:.4g}")
    return table


def _columns(samples: Sequence[Sample], rewarded: bool) -> list[str]:
    present = {
        SIDE: any(SIDE in sample.extras for sample in samples),
        "parent": any(sample.answer for sample in samples),
        "reward": rewarded,
        "right": any(sample.correct is not None for sample in samples),
    }
    return ["prompt", "completion", *(heading for heading, is_present in present.items() if is_present)]


def _cell(sample: Sample, heading: str) -> str:
    cells = {
        "prompt": sample.prompt,
        "completion": repr(sample.completion),
        SIDE: str(sample.extras.get(SIDE, "")),
        "parent": sample.answer or "",
        "reward": "missing" if sample.reward is None else f"{sample.reward:.2f}",
        "right": {None: "", True: "yes", False: "no"}[sample.correct],
    }
    return cells[heading]
