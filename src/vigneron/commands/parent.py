"""`vigneron parent`: request the parent's answers, cache them, and show them before training.

The parent is PGSRM's word for the model whose answers are the reference answers.
"""

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
from vigneron.files import check_new_file, write_atomically
from vigneron.report.terminal import say
from vigneron.run_data.load import load_data
from vigneron.run_data.readers import checker_name
from vigneron.run_data.reference_answers import answer_notices, ask_parent, check_missing, count_cached, load_parent
from vigneron.sources.parents import Outcome

PROGRESS_LINES = 10
"""Lines of progress when the output is not a terminal."""


def review_parent(console: Console, config: Config, recipe: str, *, show: int, out: Path | None) -> None:
    load_parent(config).cache.close()
    files = [] if out is None else _new_files(out)
    data = load_data(config)
    for text in data.notices:
        say(console, f"note: {text}")
    try:
        with _progress(console) as progress:
            review = ask_parent(config, data, progress=progress)
    except KeyboardInterrupt:
        cached, to_ask = count_cached(config, data)
        say(console, f"stopped: {cached} answers are cached, {to_ask} are left to request")
        say(console, f"resume  vigneron parent {recipe}")
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
            say(console, f"wrote {path}: {len(rows)} rows; edit them, and use the file as `{key}`")
            written.append(f" {key}={path}")
    say(console, f"train  vigneron train {recipe}{''.join(written)}{_without_parent(config) if written else ''}")


def _without_parent(config: Config) -> str:
    """Overrides that make the recipe read the written files instead of querying the parent."""
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
    """A progress bar in a terminal, a few plain lines otherwise."""
    if not console.is_terminal:

        def line(done: int, of: int) -> None:
            if done == of or done == 1 or done * PROGRESS_LINES // of > (done - 1) * PROGRESS_LINES // of:
                say(console, f"answers {done}/{of}")

        yield line
        return
    columns = (TextColumn("answers"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("answers", total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)


def _new_files(out: Path) -> list[Path]:
    """The files for the training and the held-out rows, checked before the parent is queried."""
    files = [out, out.with_suffix(".held_out.jsonl")]
    for path in files:
        check_new_file(path, [".jsonl"])
    if not out.absolute().parent.is_dir():
        raise UserError(f"cannot write '{out}': the folder '{out.absolute().parent}' does not exist")
    return files


def _write_rows(path: Path, rows: Sequence[Row]) -> None:
    try:
        write_atomically(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    except OSError as error:
        raise UserError(f"cannot write '{path}': {error.strerror}") from error
