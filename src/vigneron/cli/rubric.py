"""`vigneron rubric …`: the verbs for rubric files. Heavy imports wait until a verb needs them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Rubrics: check, try, convert, refine and review them."
)

RubricFile = Annotated[str, typer.Argument(help="A .yaml or .json file, or the name of an example.")]
JUDGE_HELP = "Who judges: as a recipe's reward.judge, in YAML or JSON, or a recipe or config that names one."


@app.command()
def validate(
    file: RubricFile,
    data: Annotated[Path | None, typer.Option(help="Rows to check against it (.jsonl, .csv).")] = None,
) -> None:
    """Check a rubric, and that rows have what it needs; every error with its line."""
    from vigneron.rubric.fences import one_line
    from vigneron.rubric.read import normalised, read_rubric, rubric_version

    rubric, notices = normalised(read_rubric(file))
    if data is not None:
        from vigneron.data.dataset import read_rows
        from vigneron.rubric.rows import check_rubric_rows

        rows = read_rows(data)
        check_rubric_rows(rubric, rows, f"'{data}'")
    from vigneron.commands.rubric_try import rubric_table

    _console().print(rubric_table(rubric))
    for notice in notices:
        typer.echo(f"note: {notice}")
    if data is not None:
        typer.echo(f"{data}: {len(rows)} rows, each with a category and the columns it needs")
    typer.echo(f"{file} is valid: version {one_line(rubric_version(rubric))}")


@app.command()
def schema() -> None:
    """Print the JSON Schema of rubric files."""
    from vigneron.rubric.model import rubric_schema_text

    typer.echo(rubric_schema_text(), nl=False)


@app.command(name="try")
def try_(
    file: RubricFile,
    answers: Annotated[Path, typer.Argument(help="Rows with `prompt` and `completion` (.jsonl, .csv).")],
    judge: Annotated[str | None, typer.Option(help=JUDGE_HELP)] = None,
    normalise: Annotated[bool, typer.Option("--normalise", help="A perfect answer earns 1.")] = False,
) -> None:
    """Score given answers, and show what the judge says of each."""
    from vigneron.commands.rubric_try import judge_of

    config = None if judge is None else judge_of(judge)
    from vigneron.commands.rubric_try import try_rubric

    try_rubric(_console(), file, answers, config, normalise=normalise)


@app.command()
def convert(
    source: Annotated[Path, typer.Argument(metavar="IN", help="What to convert.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Where to write it.")],
    from_: Annotated[str, typer.Option("--from", help="vigneron, openai, healthbench or verifiers.")],
    to: Annotated[str, typer.Option("--to", help="vigneron, openai, healthbench or verifiers.")],
    category: Annotated[str | None, typer.Option(help="Which one, where the other format knows none.")] = None,
    model: Annotated[str | None, typer.Option(help="The model that OpenAI's graders name.")] = None,
    generic: Annotated[bool, typer.Option("--generic", help="HealthBench: one item for all examples.")] = False,
) -> None:
    """From and to OpenAI's grader JSON, HealthBench's JSONL, and verifiers' criteria."""
    from vigneron.errors import UserError
    from vigneron.rubric.formats.convert import Options, convert

    if out.exists():
        raise UserError(f"'{out}' exists: choose another name")
    text, notices = convert(source, from_, out, to, Options(category, model, generic))
    from vigneron.files import write_for_user
    from vigneron.rubric.fences import one_line

    write_for_user(out, text)
    for notice in notices:
        typer.echo(f"note: {one_line(notice)}")
    typer.echo(f"wrote {out}")


@app.command()
def atomize(
    file: RubricFile,
    item: Annotated[str, typer.Argument(help="The vague item's name.")],
    judge: Annotated[str, typer.Option(help=JUDGE_HELP)],
    category: Annotated[str | None, typer.Option(help="Where the item stands, if it stands in several.")] = None,
    share: Annotated[float, typer.Option(help="Of the item's weight, what goes to its parts.")] = 0.5,
    accept: Annotated[str | None, typer.Option(help="Numbers of the proposals to accept, as in 1,3.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where to write the new rubric.")] = None,
) -> None:
    """Ask a judge for verifiable parts of a vague item; you accept or refuse each."""
    from vigneron.commands.rubric_try import judge_of

    config = judge_of(judge)
    from vigneron.commands.rubric_atomize import atomize

    atomize(_console(), file, item, config, category=category, share=share, accept=accept, out=out)


@app.command()
def review(
    run: Annotated[Path, typer.Argument(help="A run's folder.")],
    labels: Annotated[
        Path | None, typer.Option(help="People's scores: prompt, completion, item, score (.jsonl, .csv).")
    ] = None,
    step: Annotated[int | None, typer.Option(help="Samples of this step alone.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the figures to a .csv file too.")] = None,
) -> None:
    """A run's items by confidence and by disagreement with people, the weak ones first."""
    from vigneron.commands.rubric_review import review_run

    review_run(_console(), run, labels=labels, step=step, out=out)


def _console() -> "Console":
    from rich.console import Console

    return Console()
