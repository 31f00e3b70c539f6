"""`vigneron show RUN`: state, config, metrics, warnings and checkpoints of a run, and commands to continue."""

import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from vigneron.commands.runs import STATE_STYLES, ago
from vigneron.distributed.launch import resume_command
from vigneron.errors import visible
from vigneron.report.tables import whole_sparkline
from vigneron.run_store.outcome_text import best_text, next_steps, outcome_text
from vigneron.run_store.run_details import RunDetails, before_and_after
from vigneron.run_store.series import series
from vigneron.run_store.status import RunStatus, SavedCheckpoint, readable_size
from vigneron.timing import TOTAL
from vigneron.values import short

OUTCOME_STYLES = {"better": "green", "worse": "red"}
CHANGES_SHOWN = 12
PHASES_SHOWN = 6
PHASE_SHOWN_FROM = 0.1
"""Seconds."""


def print_run(console: Console, run: RunDetails) -> None:
    for line in lines_of(run, min(console.width, 100)):
        console.print(line, soft_wrap=not console.is_terminal)


def lines_of(run: RunDetails, width: int) -> Iterator[Text]:
    yield from _head(run)
    yield from _section("outcome", _outcome_rows(run), OUTCOME_STYLES.get(run.outcome.verdict, ""))
    if changes := before_and_after(run):
        yield from _section("held out", ((c.label, f"{short(c.before)} → {short(c.after)}") for c in changes))
    curves = [(metric.label, series(run.records, metric.key)[1]) for metric in run.metrics]
    room = max(8, width - 32)
    yield from _section(
        "curves", ((label, f"{values[-1]:>9.3f}  {whole_sparkline(values, room)}") for label, values in curves)
    )
    for kind, title in (("warning", "warnings"), ("note", "notes")):
        notices = [(f"step {n.step}", visible(n.text)) for n in run.notices if n.kind == kind]
        yield from _section(title, notices, "yellow" if kind == "warning" else "")
    yield from _section("checkpoints", ((f"step {one.step}", _described(run, one)) for one in run.saved))
    yield from _section("next", _next_commands(run))


def _outcome_rows(run: RunDetails) -> Iterator[tuple[str, str]]:
    """Of a run that has logged something."""
    if run.records:
        yield "held out", outcome_text(run.outcome)
        if best := best_text(run.outcome):
            yield "best", best


def _source_name(given: str | list[str] | None) -> str:
    names = given if isinstance(given, list) else [given or ""]
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return (names[0] if names[0].startswith("hf:") else Path(names[0]).name) + more


def _head(run: RunDetails) -> Iterator[Text]:
    status, config = run.status, run.config
    yield Text.assemble(
        (visible(status.name), "bold"), "  ", (status.state, STATE_STYLES[status.state]), f"  {_progress(status)}"
    )
    if status.error:
        yield Text(f"error: {visible(status.error)}", style="red")
    data = config.data.task or _source_name(config.data.train)
    reward = "" if config.method.reads == "pairs" else f"   reward {config.reward.kind}"
    lora = ", LoRA" if config.model.lora is not None else ""
    for name, value in (
        ("recipe", config.recipe),
        ("method", config.method.name + reward),
        ("model", _model_text(config.model.name) + lora),
        ("data", f"{data}: {run.rows[0]} rows, {run.rows[1]} held out"),
        ("changed", _changes_text(run.changes)),
        ("size", readable_size(run.bytes)),
        ("start", _start_text(run.start)),
    ):
        if value:
            yield Text(f"{name:<9}{visible(value)}")


def _progress(status: RunStatus) -> str:
    ended = status.ended or (status.changed if not status.alive else time.time())
    took = f", {_duration(ended - status.began)}" if status.began and ended and ended > status.began else ""
    changed = f", {ago(time.time() - status.changed)}" if status.changed else ""
    return f"step {status.step} of {status.steps}{took}{changed}"


def _duration(seconds: float) -> str:
    hours, rest = divmod(int(seconds), 3600)
    return f"{hours} h {rest // 60} min" if hours else f"{rest // 60} min {rest % 60} s" if rest >= 60 else f"{rest} s"


def _start_text(seconds: Mapping[str, float]) -> str:
    """Time to the end of the first step, and the phases that took most of it."""
    if TOTAL not in seconds:
        return ""
    longest = sorted((name for name in seconds if name != TOTAL), key=lambda name: -seconds[name])[:PHASES_SHOWN]
    parts = [f"{name} {seconds[name]:.1f}" for name in longest if seconds[name] >= PHASE_SHOWN_FROM]
    of_which = f": {', '.join(parts)}" if parts else ""
    return f"{seconds[TOTAL]:.1f} s to the end of the first step{of_which}"


def _model_text(name: str) -> str:
    """For a checkpoint of a run: the run and the step."""
    parts = Path(name).parts
    if len(parts) > 2 and parts[-2] == "checkpoints":
        return f"run {parts[-3]}, {parts[-1].replace('-', ' ')}"
    return name


def _changes_text(changes: Mapping[str, Any] | None) -> str:
    if changes is None:
        return ""
    shown = [f"{key}={value}" for key, value in list(changes.items())[:CHANGES_SHOWN]]
    more = f", and {len(changes) - CHANGES_SHOWN} more" if len(changes) > CHANGES_SHOWN else ""
    return ", ".join(shown) + more if shown else "nothing"


def _described(run: RunDetails, one: SavedCheckpoint) -> str:
    notes = [
        readable_size(one.bytes),
        *["newest"] * (one is run.saved[-1]),
        *["best, held out"] * (one.step == run.best),
    ]
    return "  ".join(notes)


def _next_commands(run: RunDetails) -> Iterator[tuple[str, str]]:
    status, path = run.status, run.status.path
    resume = resume_command(path, run.config.scale.shard)
    if not status.alive and status.state != "finished":
        yield "resume", resume
    advice = next_steps(run.outcome, status) if status.state == "finished" and run.saved else []
    yield from advice
    named = {name for name, _ in advice}
    if status.state == "finished" and run.saved and run.outcome.verdict != "worse" and "train further" not in named:
        yield "train further", f"{resume} steps={2 * status.steps}"
    if run.saved and run.config.method.trains == "policy":
        yield "chat", f"vigneron chat {path}{'' if run.config.environment is None else ' --environment'}"
    if status.step:
        yield "view", f"vigneron view {path}"
        yield "report", f"vigneron report {path}"
    if run.saved and "export" not in named:
        yield "export", f"vigneron export {path} DIR"


def _section(title: str, rows: Iterable[tuple[str, str]], style: str = "") -> Iterator[Text]:
    rows = list(rows)
    if not rows:
        return
    yield Text()
    yield Text(title, style="dim")
    width = max(17, *(len(name) for name, _ in rows))
    for name, value in rows:
        yield Text(f"  {name:<{width}} {value}", style=style)
