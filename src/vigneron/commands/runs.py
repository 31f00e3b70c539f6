"""`vigneron runs`: one line per run, newest first."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from vigneron.errors import visible
from vigneron.run_store.headline_metrics import headline_values
from vigneron.run_store.outcome import stored_outcome
from vigneron.run_store.outcome_text import ended_outcome, outcome_cell
from vigneron.run_store.status import RunStatus, bytes_in, readable_size, run_folders, status_of
from vigneron.values import short

STATE_STYLES = {
    "starting": "cyan",
    "running": "cyan",
    "finished": "green",
    "stopped": "yellow",
    "failed": "red",
    "killed": "red",
}
HEADINGS = ("run", "state", "step", "held out", "metrics", "changed", "size", "method")
DROPPED_FIRST = ("method", "size", "changed", "metrics", "held out")
"""Columns left out in this order when the terminal is too narrow."""


@dataclass(frozen=True)
class ListedRun:
    name: str
    """Path relative to the listed folder."""
    status: RunStatus
    bytes: int

    @property
    def changed(self) -> float:
        status = self.status
        return status.changed or status.ended or status.began or 0.0

    def as_json(self) -> dict[str, Any]:
        status = self.status
        keys = ("state", "recipe", "method", "step", "steps", "began", "ended", "changed", "error")
        values = {key: getattr(status, key) for key in keys}
        return {"name": self.name, "path": str(status.path), **values, "bytes": self.bytes} | {
            "figures": dict(status.metrics),
            "outcome": ended_outcome(status),
        }


def list_runs(runs: Path, *, by_size: bool = False) -> list[ListedRun]:
    listed = [ListedRun(str(path.relative_to(runs)), status_of(path), bytes_in(path)) for path in run_folders(runs)]
    return sorted(listed, key=lambda run: -(run.bytes if by_size else run.changed))


def print_runs(console: Console, runs: Sequence[ListedRun]) -> None:
    """Aligned columns. A pipe gets all of them, a terminal those that fit."""
    now = time.time()
    rows = [_cells(run, now) for run in runs]
    columns = list(HEADINGS)
    widths = {h: max(len(h), *(len(row[h]) for row in rows)) for h in HEADINGS}
    if console.is_terminal:
        for heading in DROPPED_FIRST:
            if sum(widths[h] + 2 for h in columns) - 2 > console.width:
                columns.remove(heading)
        widths["run"] = min(widths["run"], max(8, console.width - sum(widths[h] + 2 for h in columns[1:])))
    console.print(_line(dict(zip(HEADINGS, HEADINGS, strict=True)), columns, widths, "dim"), soft_wrap=True)
    for row in rows:
        console.print(_line(row, columns, widths, STATE_STYLES[row["state"]]), soft_wrap=True)
    for run in runs:
        if run.status.error:
            console.print(Text(f"{run.name}: {visible(run.status.error)}", style="red"), soft_wrap=True)


def ago(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds // size)} {unit} ago"
    return "now"


def _cells(run: ListedRun, now: float) -> dict[str, str]:
    status, outcome = run.status, stored_outcome(run.status.outcome)
    return {
        "run": visible(run.name),
        "state": status.state,
        "step": f"{status.step}/{status.steps}",
        "held out": "" if outcome is None else outcome_cell(outcome),
        "metrics": "  ".join(f"{one.label} {short(v)}" for one, v in headline_values(status.config, status.metrics)),
        "changed": ago(now - run.changed) if run.changed else "",
        "size": readable_size(run.bytes),
        "method": visible(status.method),
    }


def _line(row: dict[str, str], columns: Sequence[str], widths: dict[str, int], style: str) -> Text:
    text = Text(no_wrap=True)
    for heading in columns:
        cell, width = row[heading], widths[heading]
        shown = cell if len(cell) <= width else cell[: width - 1] + "…"
        last = heading == columns[-1]
        text.append(shown if last else f"{shown:<{width}}  ", style if heading == "state" or style == "dim" else "")
    return text
