"""Watching a run: a live panel in a terminal, plain lines when piped."""

from collections import deque
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from vigneron.batch import Batch
from vigneron.redaction import redacted
from vigneron.report.rubric_keys import category_rewards
from vigneron.report.tables import samples_table, visible
from vigneron.training.run import Run
from vigneron.training.samples import samples_of
from vigneron.training.slots import Metrics

FIGURES = {
    "reward": "reward",
    "NLL": "loss/nll",
    "DPO": "loss/dpo",
    "Bradley-Terry": "loss/bradley_terry",
    "cross-entropy": "loss/preference",
    "margin": "margin",
    "rewards' margin": "rewards/margins",
    "kept": "kept/reward",
    "accuracy": "accuracy",
    "entropy": "entropy",
    "KL": "kl",
    "flat groups": "frac_reward_zero_std",
    "held-out accuracy": "eval/accuracy",
    "held-out pairs": "eval/rewards/accuracies",
}
BARS = "▁▂▃▄▅▆▇█"
WEAKEST_SHOWN = 3
WEAKEST_WIDTH = 60


class TerminalView:
    """Used as a context manager; `step` is called after every step."""

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._title = Text(visible(title))
        self._live: Live | None = None
        self._history: dict[str, list[float]] = {name: [] for name in FIGURES}
        self._recent: deque[tuple[int, float]] = deque(maxlen=10)

    def __enter__(self) -> "TerminalView":
        if self._console.is_terminal:
            starting = Text(f"{self._title}: starting", style="dim")
            self._live = Live(starting, console=self._console, refresh_per_second=4, transient=False)
            self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._live is not None:
            self._live.__exit__(*error)

    def notice(self, text: str) -> None:
        self._console.print(Text(f"note: {shown(text)}", style="dim"), soft_wrap=True)

    def step(self, run: Run, metrics: Metrics, batch: Batch, seconds: float) -> None:
        self._recent.append((len(batch), seconds))
        for name, key in FIGURES.items():
            if key in metrics:
                self._history[name].append(metrics[key])
        weak = weakest(metrics) if run.config.reward.kind == "rubric" else ""
        if self._live is None:
            say(self._console, self._line(run, metrics, weak))
        else:
            self._live.update(self._panel(run, batch, weak))

    def _pace(self, run: Run) -> tuple[float, str]:
        """Samples a second over the last steps, and the time left."""
        spent = sum(seconds for _, seconds in self._recent)
        rate = sum(count for count, _ in self._recent) / spent
        left = (run.config.steps - run.step) * spent / len(self._recent)
        return rate, f"{int(left // 60)}:{int(left % 60):02d}"

    def _line(self, run: Run, metrics: Metrics, weak: str) -> str:
        rate, left = self._pace(run)
        shown = "  ".join(f"{name} {metrics[key]:.3f}" for name, key in FIGURES.items() if key in metrics)
        weakest_of_all = f"  weakest: {weak}" if weak else ""
        return f"step {run.step}/{run.config.steps}  {shown}{weakest_of_all}  {rate:.1f} samples/s  {left} left"

    def _panel(self, run: Run, batch: Batch, weak: str) -> Panel:
        rate, left = self._pace(run)
        figures = Table.grid(padding=(0, 2))
        for name, history in self._history.items():
            if history:
                figures.add_row(name, f"{history[-1]:.3f}", Text(sparkline(history, 40), style="green"))
        if weak:
            figures.add_row("weakest", "", Text(weak))
        samples = samples_table(samples_of(batch.rows(range(min(3, len(batch)))), run.step, "train"))
        head = Text(f"step {run.step}/{run.config.steps}   {rate:.1f} samples/s   {left} left")
        bar = ProgressBar(total=run.config.steps, completed=run.step, width=60)
        return Panel(Group(head, bar, Text(), figures, Text(), samples), title=self._title, title_align="left")


def weakest(metrics: Metrics) -> str:
    """The categories of a rubric that earn least, as many as fit; one alone is the whole reward."""
    rewards = {name: metrics[key] for name, key in category_rewards(metrics).items()}
    if len(rewards) < 2:
        return ""
    shown = [f"{name} {value:.3f}" for name, value in sorted(rewards.items(), key=lambda pair: pair[1])[:WEAKEST_SHOWN]]
    while len(shown) > 1 and len(", ".join(shown)) > WEAKEST_WIDTH:
        shown.pop()
    return ", ".join(shown)


def say(console: Console, text: str) -> None:
    """Plain text: nothing in it is markup, no line is broken, and nothing moves the cursor."""
    console.print(shown(text), markup=False, emoji=False, highlight=False, soft_wrap=True)


def shown(text: str) -> str:
    """Lines stay lines; no other control characters, and no secrets."""
    return "\n".join(visible(line) for line in redacted(text).split("\n"))


def sparkline(values: list[float], width: int) -> str:
    """The last values as bars; a value that is not a number is a gap."""
    values = values[-width:]
    real = [v for v in values if v == v]
    if not real:
        return ""
    low, high = min(real), max(real)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((v - low) * scale)] if v == v else " " for v in values)
