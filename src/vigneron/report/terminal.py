"""The terminal view of a run: a live panel, or one line per step when piped. The same for every method.

It is shown before torch is imported, and imports nothing that does.
"""

import re
import time
from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from vigneron.errors import visible
from vigneron.redaction import redacted
from vigneron.report.phase_names import QUICK_PHASES, shown_phase
from vigneron.report.tables import NARROW, samples_lines, samples_table, sparkline
from vigneron.run_store.headline_metrics import headline_metrics
from vigneron.run_store.metric_table import in_order
from vigneron.run_store.metrics_file import records_of
from vigneron.run_store.rubric_items import category_rewards
from vigneron.run_store.samples import Sample
from vigneron.timing import WHOLE
from vigneron.values import is_number, short

if TYPE_CHECKING:
    from vigneron.batch import Batch
    from vigneron.config import Config
    from vigneron.training.callbacks import RunInfo
    from vigneron.training.method import Metrics

WEAKEST_SHOWN = 3
WEAKEST_WIDTH = 60
SAMPLES_SHOWN = 3
LONGEST_CELL = 240
WARNINGS_SHOWN = 3
SPARKS = 40
PACE_OVER = 10
"""Steps over which the pace is a mean, with their evaluations."""
PHASE_SHOWN_AFTER = 1.0
"""Seconds before a phase is named: a shorter one would only flicker."""


class TerminalView:
    """A context manager; `step` is called after every step. Redrawn four times a second, so that it shows what the run
    waits for and follows the terminal's size."""

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._title = visible(title)
        self._live: Live | None = None
        self._history: dict[str, list[float]] = {}
        self._labels: dict[str, str] = {}
        self._recent: deque[tuple[int, float, float]] = deque(maxlen=PACE_OVER)
        self._last_step: float | None = None
        self._began = time.monotonic()
        self._phase: tuple[str, float] | None = ("start", self._began)
        self._started: set[str] = set()
        self._warnings: list[tuple[int, str]] = []
        self._samples: list[Sample] = []
        self._rewarded = True
        self._weakest = ""
        self._at: tuple[int, int] | None = None
        self._spinner = Spinner("dots")

    def __enter__(self) -> "TerminalView":
        if self._console.is_terminal:
            self._live = Live(get_renderable=self._render, console=self._console, refresh_per_second=4)
            self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._phase = None
        if self._live is not None:
            self._live.__exit__(*error)

    def notice(self, text: str) -> None:
        self._console.print(Text(f"note: {printable(text)}", style="dim"), soft_wrap=True)

    def warning(self, text: str) -> None:
        """Shown in the panel, which has room for the last ones; notices.jsonl has all."""
        self._warnings.append((self._at[0] if self._at else 0, printable(text)))
        if self._live is None:
            say(self._console, f"warning: {text}")

    def phase(self, text: str | None) -> None:
        now = time.monotonic()
        self._phase = None if text is None else (text, now)
        if text is not None and self._live is None and self._at is None:
            self._start_line(text, now - self._began)

    def _start_line(self, text: str, seconds: float) -> None:
        """A line for each phase before the end of the first step, when it begins for the first time."""
        name = re.sub(r" \d+/\d+$", "", text)
        if name not in self._started and name not in QUICK_PHASES:
            self._started.add(name)
            say(self._console, f"start: {seconds:.1f} s, {shown_phase(name)}")

    def evaluation(self, run: "RunInfo", metrics: "Metrics") -> None:
        """The line of the model before training, or of a step whose evaluation had failed; it stays above the panel."""
        config = run.config.model_dump(mode="json")
        shown = headline_metrics(config, [metrics], run.config.method)
        values = "  ".join(f"{one.label} {short(metrics[one.key])}" for one in shown)
        when = "" if run.step else "  before training"
        say(self._console, f"step {run.step}/{run.config.steps}  {values or 'no held-out metric has a value'}{when}")

    def step(self, run: "RunInfo", metrics: "Metrics", batch: "Batch", seconds: float) -> None:
        self._update_pace(len(batch), seconds)
        if not self._labels:
            for record in records_of(run.folder.path):
                if record["step"] < run.step:  # of a resumed run, or the evaluation before the first step
                    self._add_history(run.config, record)
        self._add_history(run.config, metrics)
        self._weakest = weakest(metrics) if run.config.reward.kind == "rubric" else ""
        self._at = (run.step, run.config.steps)
        if self._live is None:
            say(self._console, self._line(metrics))
            return
        self._rewarded = batch.signals.rewards_B is not None
        from vigneron.training.output import samples_of  # imported by the run already

        self._samples = samples_of(batch.rows(range(min(SAMPLES_SHOWN, len(batch)))), run.step, "train")
        self._live.refresh()

    def _add_history(self, config: "Config", metrics: "Metrics") -> None:
        """A metric that was shown once stays shown."""
        shown = headline_metrics(config.model_dump(mode="json"), [metrics], config.method)
        self._labels |= {one.key: one.label for one in shown}
        for key in self._labels:
            if is_number(metrics.get(key)):
                self._history.setdefault(key, []).append(metrics[key])
                del self._history[key][:-SPARKS]

    def _update_pace(self, samples: int, seconds: float) -> None:
        now = time.monotonic()
        whole = max(seconds, now - self._last_step) if self._last_step is not None else seconds
        self._recent.append((samples, seconds, whole))
        self._last_step = now

    def _pace(self) -> tuple[float, str]:
        """Samples per second over the last steps, and the time left, including what happens between steps."""
        assert self._at is not None
        step, steps = self._at
        rate = sum(count for count, _, _ in self._recent) / sum(seconds for _, seconds, _ in self._recent)
        left = int((steps - step) * sum(whole for _, _, whole in self._recent) / len(self._recent))
        minutes = (
            f"{left // 60}:{left % 60:02d}" if left < 3600 else f"{left // 3600}:{left // 60 % 60:02d}:{left % 60:02d}"
        )
        return rate, f"{minutes} left"

    def _line(self, metrics: "Metrics") -> str:
        assert self._at is not None
        rate, left = self._pace()
        keys = [key for key in in_order(self._labels) if key in metrics]
        shown = "  ".join(f"{self._labels[key]} {short(metrics[key])}" for key in keys)
        weakest_of_all = f"  weakest: {self._weakest}" if self._weakest else ""
        return f"step {self._at[0]}/{self._at[1]}  {shown}{weakest_of_all}  {rate:.1f} samples/s  {left}"

    def _render(self) -> RenderableType:
        if self._at is None:
            return self._waiting() or Text(f"{self._title}: starting", style="dim")
        return self._panel(self._at, self._console.width)

    def _waiting(self) -> RenderableType | None:
        """The current phase and how long it has taken, if it takes long."""
        current = self._phase  # another thread may change it meanwhile
        if current is None or time.monotonic() - current[1] < PHASE_SHOWN_AFTER:
            return None
        phase, began = current
        name = shown_phase(phase)
        what = f"{self._title}: {'starting' if name == 'start' else name}" if self._at is None else name
        self._spinner.update(text=Text(f"{what}, {time.monotonic() - began:.0f} s", style="dim"))
        return self._spinner

    def _panel(self, at: tuple[int, int], width: int) -> Panel:
        rate, left = self._pace()
        head = Text(f"step {at[0]}/{at[1]}   {rate:.1f} samples/s   {left}", no_wrap=True, overflow="ellipsis")
        parts: list[RenderableType] = [
            head,
            ProgressBar(total=at[1], completed=at[0], width=max(4, min(60, width - 4))),
            self._waiting() or Text(),
            self._metrics(width),
            *self._warning_lines(),
            Text(),
        ]
        if width < NARROW:
            parts += samples_lines(self._samples, width - 4, rewarded=self._rewarded)
        else:
            parts.append(samples_table(self._samples, rewarded=self._rewarded, longest=LONGEST_CELL))
        return Panel(Group(*parts), title=Text(self._title), title_align="left")

    def _metrics(self, width: int) -> Table:
        grid = Table.grid(padding=(0, 2))
        keys = [key for key in in_order(self._labels) if self._history.get(key)]
        room = width - 4 - 4 - 8 - max((len(self._labels[key]) for key in keys), default=0)
        for key in keys:
            history = self._history[key]
            bars = Text(sparkline(history, max(1, min(SPARKS, room))), style="green", no_wrap=True)
            grid.add_row(Text(self._labels[key], no_wrap=True), Text(short(history[-1]), no_wrap=True), bars)
        if self._weakest:
            grid.add_row("weakest", "", Text(self._weakest))
        return grid

    def _warning_lines(self) -> list[RenderableType]:
        last = self._warnings[-WARNINGS_SHOWN:]
        return [Text(), *(Text(f"step {step}: {text}", style="yellow") for step, text in last)] if last else []


def weakest(metrics: "Metrics") -> str:
    """The categories of a rubric with the lowest rewards, as many as fit; empty for a single category."""
    rewards = {name: metrics[key] for name, key in category_rewards(metrics).items()}
    if len(rewards) < 2:
        return ""
    shown = [f"{name} {value:.3f}" for name, value in sorted(rewards.items(), key=lambda pair: pair[1])[:WEAKEST_SHOWN]]
    while len(shown) > 1 and len(", ".join(shown)) > WEAKEST_WIDTH:
        shown.pop()
    return ", ".join(shown)


def say(console: Console, text: str) -> None:
    """Print plain text: no markup, no wrapping, no control characters."""
    console.print(printable(text), markup=False, emoji=False, highlight=False, soft_wrap=True)


def printable(text: str) -> str:
    """Without secrets and without control characters other than newlines."""
    return "\n".join(visible(line) for line in redacted(text).split("\n"))


Laps = Sequence[Mapping[str, float]]


def profile_rows(laps: Laps) -> list[tuple[str, float, float]]:
    """(phase, median seconds, share of a step), in the order of the step; time outside all phases is `other`.

    The first steps load, compile and capture: of five or more steps, the first two are left out. A phase that is not in
    every step (an evaluation, a checkpoint) counts with its mean over all steps.
    """
    steady = laps[2:] if len(laps) >= 5 else laps
    names = dict.fromkeys(name for lap in steady for name in lap if name != WHOLE)
    seconds = {name: _typical([lap.get(name, 0.0) for lap in steady]) for name in names}
    whole = sum(lap[WHOLE] for lap in steady) / len(steady)
    other = max(0.0, whole - sum(value for name, value in seconds.items() if "/" not in name))
    rows = [*seconds.items(), ("other", other), (WHOLE, whole)]
    return [(name, value, value / whole) for name, value in sorted(rows, key=_after_its_parent(list(names)))]


def _typical(values: Sequence[float]) -> float:
    return median(values) if all(values) else sum(values) / len(values)


def _after_its_parent(names: Sequence[str]):  # type: ignore[no-untyped-def]
    """Sort inner phases, which end before the outer ones, below these."""
    parents = [name for name in names if "/" not in name]

    def key(row: tuple[str, float]) -> tuple[int, int]:
        parent = row[0].split("/")[0]
        if parent not in parents:
            return (len(parents) + (row[0] == WHOLE), 0)
        return (parents.index(parent), 0 if "/" not in row[0] else 1 + names.index(row[0]))

    return key


def profile_table(laps: Laps) -> Table:
    table = Table(box=None, padding=(0, 2), header_style="dim", title=f"time of a step ({len(laps)} steps)")
    table.add_column("phase")
    table.add_column("seconds", justify="right")
    table.add_column("share", justify="right")
    for name, seconds, share in profile_rows(laps):
        depth = name.count("/")
        table.add_row("  " * depth + name.rsplit("/")[-1], f"{seconds:.4f}", f"{share:.0%}")
    return table
