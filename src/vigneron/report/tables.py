"""Tables for the terminal. Text written by a model is never markup."""

from collections.abc import Iterator, Mapping, Sequence

from rich.table import Table
from rich.text import Text

from vigneron.errors import visible
from vigneron.run_store.sample_turns import turns_of_sample
from vigneron.run_store.samples import Sample
from vigneron.values import even_ranges

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


def conversation_lines(sample: Sample) -> Iterator[str]:
    """A conversation turn by turn, with what each turn earned; of another sample, its completion."""
    talk = turns_of_sample(sample)
    if talk is None:
        yield _cell(sample, "completion")
        return
    for turn in talk.turns:
        who = f"{turn.role} ({turn.name})" if turn.name else turn.role
        parts = [turn.thinking, turn.text, *(f"{call.name}({call.arguments})" for call in turn.calls)]
        notes = [
            *([] if turn.reward is None else [f"reward {turn.reward:.4g}"]),
            *([turn.log] if turn.log else []),
            *([f"no valid call: {turn.fault}"] if turn.fault else []),
        ]
        said = "\n".join(part for part in parts if part)
        lines = said.split("\n") if said else ["(empty)"]
        yield f"{who}: {lines[0]}"
        yield from (f"  {line}" for line in lines[1:])
        if notes:
            yield f"  [{', '.join(notes)}]"
    if talk.left_out:
        yield f"… and {talk.left_out} more messages"
    if talk.ended:
        yield f"[ended early: {talk.ended}]"
    if talk.error:
        yield f"[the environment failed, so there is no reward: it {talk.error}]"


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
        "reference": any(sample.answer for sample in samples),
        "reward": rewarded,
        "correct": any(sample.correct is not None for sample in samples),
    }
    return ["prompt", "completion", *(heading for heading, is_present in present.items() if is_present)]


def _cell(sample: Sample, heading: str) -> str:
    cells = {
        "prompt": sample.prompt,
        "completion": repr(sample.completion),
        SIDE: str(sample.extras.get(SIDE, "")),
        "reference": sample.answer or "",
        "reward": "missing" if sample.reward is None else f"{sample.reward:.2f}",
        "correct": {None: "", True: "yes", False: "no"}[sample.correct],
    }
    return cells[heading]


BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int) -> str:
    """The last `width` values as bars; NaN is a gap."""
    values = values[-width:]
    real = [v for v in values if v == v]
    if not real:
        return ""
    low, high = min(real), max(real)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((v - low) * scale)] if v == v else " " for v in values)


def whole_sparkline(values: Sequence[float], width: int) -> str:
    """All values as at most `width` bars, each the mean of its chunk."""
    if len(values) <= width:
        return sparkline(values, width)
    means = [sum(values[i] for i in chunk) / len(chunk) for chunk in even_ranges(len(values), width)]
    return sparkline(means, width)
