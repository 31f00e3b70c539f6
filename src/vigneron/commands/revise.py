"""`vigneron revise`: answers are criticised and revised by principles, and written as rows for SFT."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from vigneron.commands.judging import check_out, note_missing, open_judge, prompt_rows, write_rows
from vigneron.data.prompts import Row, completion_text
from vigneron.errors import UserError, did_you_mean
from vigneron.labels.live_sampling import refuse_environment, sample_groups
from vigneron.labels.revisions import revise
from vigneron.recipe import load_config
from vigneron.report.terminal import say
from vigneron.rubric.principles import read_principles
from vigneron.run_data.readers import checker_name


@dataclass(frozen=True)
class ReviseOptions:
    """Where the first answers come from: a column, a model or a run that samples, or the reviser itself."""

    source: str
    principles: str
    model: str
    out: Path
    revisions: int = 1
    answers: str | None = None
    sample: str | None = None
    temperature: float | None = None
    max_new_tokens: int | None = None
    limit: int | None = None
    seed: int = 0

    def check(self) -> None:
        check_out(self.out)
        check_out(self.held_out)
        if self.answers is not None and self.sample is not None:
            raise UserError("--answers and --sample exclude each other: give one source of first answers")
        for name in ("temperature", "max_new_tokens"):
            if self.sample is None and getattr(self, name) is not None:
                raise UserError(f"--{name.replace('_', '-')} needs --sample")

    @property
    def held_out(self) -> Path:
        return self.out.with_suffix(".held_out.jsonl")


def revise_rows(console: Console, options: ReviseOptions) -> None:
    """All files and the model are checked before the first request."""
    options.check()
    if options.sample is not None:
        refuse_environment(options.sample, "revises single answers")
    principles = read_principles(options.principles)
    rows, held_out = prompt_rows(options.source, options.limit)
    answers = None if options.answers is None else _column(rows, options.answers, options.source)
    with open_judge(console, options.model, "--model") as model:
        prompts = [row["prompt"] for row in rows]
        if options.sample is not None:
            temperature = 1.0 if options.temperature is None else options.temperature
            groups = sample_groups(
                options.sample,
                rows,
                count=1,
                temperature=temperature,
                max_new_tokens=options.max_new_tokens,
                seed=options.seed,
            )
            answers = [completion_text(answer) for _, (answer,) in groups]
        revised = revise(model, prompts, answers, principles, revisions=options.revisions, seed=options.seed)
        written = [row for row in revised.rows if row.answer.strip()]
        if not written:
            raise UserError(f"no row has an answer: the model gave none ({revised.why})")
        write_rows(options.out, [row.row() for row in written])

    def tell(text: str) -> None:
        say(console, text)

    note_missing(tell, revised.unanswered, "prompts have no first answer and are left out", revised.why)
    note_missing(tell, revised.failed, "critiques or revisions are missing: the last good answer is kept", revised.why)
    if len(written) < len(revised.rows):
        tell(f"note: {len(revised.rows) - len(written)} rows are left out: their answer is empty")
    changed = sum(row.answer != row.first for row in written)
    say(console, f"wrote {options.out}: {len(written)} rows, {changed} of them revised to another text")
    if held_out:
        write_rows(options.held_out, held_out)
        say(console, f"wrote {options.held_out}: {len(held_out)} held-out rows, as they are")
    more = "".join(f", {key}: {value}" for key, value in _data_keys(options, held_out).items())
    say(console, f"method: {{name: sft}}\ndata: {{train: {options.out}{more}}}")


def _data_keys(options: ReviseOptions, held_out: Sequence[Row]) -> dict[str, str]:
    """What a recipe's data has beside the training file, and a file of rows would lose."""
    if not held_out:
        return {}
    return {"held_out": str(options.held_out), "checker": checker_name(load_config(options.source))}


def _column(rows: Sequence[Row], column: str, source: str) -> list[str]:
    for number, row in enumerate(rows, start=1):
        if row.get(column) is None:
            raise UserError(f"--answers: '{source}', row {number} has no '{column}'{did_you_mean(column, list(row))}")
    return [completion_text(row[column]) for row in rows]
