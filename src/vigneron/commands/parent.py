"""`vigneron parent`: fill the cache of answers, and show them before anything is trained."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from vigneron.config import Config
from vigneron.data.prompts import Row, prompt_text
from vigneron.errors import UserError, visible
from vigneron.files import write_atomically
from vigneron.report.terminal import say
from vigneron.run_data.load import checker_name, load_data
from vigneron.run_data.reference_answers import answer_notices, ask_parent, check_missing, count_cached, load_parent
from vigneron.sources.parents import Outcome

# Lines that a pipe gets while a parent is asked.
LINES = 10


def review_parent(console: Console, config: Config, recipe: str, *, show: int, out: Path | None) -> None:
    load_parent(config).cache.close()
    files = [] if out is None else _free_files(out)
    data = load_data(config)
    for text in data.notices:
        say(console, f"note: {text}")
    try:
        with _progress(console) as progress:
            review = ask_parent(config, data, progress=progress)
    except KeyboardInterrupt:
        cached, to_ask = count_cached(config, data)
        say(console, f"stopped: {cached} answers are kept, {to_ask} are left to ask")
        say(console, f"go on with  vigneron parent {recipe}")
        raise SystemExit(130) from None
    assert config.parent is not None
    outcomes = review.answers.outcomes
    console.print(answers_table(review.rows[:show], outcomes[:show]))
    if len(outcomes) > show:
        say(console, f"… and {len(outcomes) - show} more (--show {len(outcomes)})")
    have = len(outcomes) - review.answers.missing
    say(console, f"{have} answered, {review.answers.missing} missing")
    say(console, answer_notices(review, config.parent.model)[0])
    check_missing(config, review)
    whole = review.with_answers()
    written = []
    for path, rows, key in zip(files, (whole.train, whole.held_out), ("data.train", "data.held_out"), strict=False):
        if rows:
            _write_rows(path, rows)
            say(console, f"wrote {path}: {len(rows)} rows, to edit, and to use as `{key}`")
            written.append(f" {key}={path}")
    say(console, f"train  vigneron train {recipe}{''.join(written)}{_without_parent(config) if written else ''}")


def _without_parent(config: Config) -> str:
    """What else a recipe has to be told to train on the files instead."""
    task = "" if config.data.task is None else f" data.task=null data.checker={checker_name(config)}"
    return f"{task} parent=null"


def answers_table(rows: Sequence[Row], outcomes: Sequence[Outcome]) -> Table:
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for heading in ("prompt", "answer"):
        table.add_column(heading, overflow="fold")
    for row, outcome in zip(rows, outcomes, strict=True):
        answer = f"missing: {outcome.why}" if outcome.answer is None else outcome.answer
        style = "" if outcome.answer is not None else "red"
        table.add_row(Text(visible(prompt_text(row["prompt"]))), Text(visible(answer), style=style))
    return table


@contextmanager
def _progress(console: Console) -> Iterator[Callable[[int, int], None]]:
    """A bar in a terminal; plain lines, a few, in a pipe."""
    if not console.is_terminal:

        def line(done: int, of: int) -> None:
            if done == of or done == 1 or done * LINES // of > (done - 1) * LINES // of:
                say(console, f"asked {done}/{of}")

        yield line
        return
    columns = (TextColumn("asking"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("asking", total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)


def _free_files(out: Path) -> list[Path]:
    """For both parts of the data; refused before anything is asked."""
    if out.suffix != ".jsonl":
        raise UserError(f"'{out}' should end in .jsonl")
    if not out.absolute().parent.is_dir():
        raise UserError(f"there is no folder '{out.absolute().parent}' to write '{out.name}' in")
    files = [out, out.with_suffix(".held_out.jsonl")]
    for path in files:
        if path.exists():
            raise UserError(f"'{path}' exists: choose another name")
    return files


def _write_rows(path: Path, rows: Sequence[Row]) -> None:
    try:
        write_atomically(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    except OSError as error:
        raise UserError(f"cannot write '{path}': {error.strerror}") from error
