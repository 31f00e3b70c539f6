"""`vigneron rubric …`: commands for rubric files. Heavy imports wait until a command needs them."""

from pathlib import Path
from typing import Annotated

import typer

from vigneron.cli.options import JUDGE_HELP, AllowCode, RunPath, SampleStep, console

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Check, try, convert, refine and review rubrics.")

RubricFile = Annotated[str, typer.Argument(help="A .yaml or .json file, or the name of a built-in example.")]


@app.command()
def validate(
    file: RubricFile,
    data: Annotated[Path | None, typer.Option(help="Dataset to check against the rubric (.jsonl, .csv).")] = None,
) -> None:
    """Check a rubric file, and a dataset against it."""
    from vigneron.rubric.fences import one_line
    from vigneron.rubric.read import normalised, read_rubric, rubric_version

    rubric, notices = normalised(read_rubric(file))
    if data is not None:
        from vigneron.data.sources import read_rows
        from vigneron.rubric.rows import check_rubric_rows

        rows = read_rows(data)
        check_rubric_rows(rubric, rows, f"'{data}'")
    from vigneron.commands.rubric_try import rubric_table

    console().print(rubric_table(rubric))
    for notice in notices:
        typer.echo(f"note: {notice}")
    if data is not None:
        typer.echo(f"{data}: {len(rows)} rows, all with a category and the required columns")
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
    normalise: Annotated[
        bool, typer.Option("--normalise", help="Scale rewards so that a perfect answer gets 1.")
    ] = False,
    allow_code: AllowCode = False,
) -> None:
    """Score answers from a file, item by item."""
    from vigneron.rubric.code_items import check_code_allowed

    check_code_allowed([file], allowed=allow_code)
    from vigneron.commands.rubric_try import parse_judge

    config = None if judge is None else parse_judge(judge)
    from vigneron.commands.rubric_try import try_rubric

    try_rubric(console(), file, answers, config, normalise=normalise)


@app.command()
def convert(
    source: Annotated[Path, typer.Argument(metavar="IN", help="File to convert.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="New file to write.")],
    from_: Annotated[str, typer.Option("--from", help="Format: vigneron, openai, healthbench or verifiers.")],
    to: Annotated[str, typer.Option("--to", help="Format: vigneron, openai, healthbench or verifiers.")],
    category: Annotated[str | None, typer.Option(help="Category to convert, for formats without categories.")] = None,
    model: Annotated[str | None, typer.Option(help="Model name to write into OpenAI's graders.")] = None,
    generic: Annotated[bool, typer.Option("--generic", help="HealthBench: one generic item for all examples.")] = False,
) -> None:
    """Convert from and to OpenAI graders, HealthBench, verifiers."""
    from vigneron.files import check_new_file
    from vigneron.rubric.formats.convert import Options, convert

    check_new_file(out)
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
    item: Annotated[str, typer.Argument(help="Name of the item to split.")],
    judge: Annotated[str, typer.Option(help=JUDGE_HELP)],
    category: Annotated[
        str | None, typer.Option(help="Category of the item, if several have one of that name.")
    ] = None,
    share: Annotated[float, typer.Option(help="Share of the item's weight that goes to the new items.")] = 0.5,
    accept: Annotated[str | None, typer.Option(help="Numbers of the proposals to accept, e.g. 1,3.")] = None,
    out: Annotated[Path | None, typer.Option(help="File for the new rubric.")] = None,
) -> None:
    """Split a vague item into verifiable ones. A judge proposes them; you accept or reject each."""
    from vigneron.commands.rubric_try import parse_judge

    config = parse_judge(judge)
    from vigneron.commands.rubric_atomize import atomize

    atomize(console(), file, item, config, category=category, share=share, accept=accept, out=out)


@app.command()
def review(
    run: RunPath,
    labels: Annotated[
        Path | None, typer.Option(help="Human scores: columns prompt, completion, item, score (.jsonl, .csv).")
    ] = None,
    step: SampleStep = None,
    out: Annotated[Path | None, typer.Option(help="Also write the metrics to this .csv file.")] = None,
) -> None:
    """List a run's weakest items. Sorted by the judge's confidence and by disagreement with human scores."""
    from vigneron.commands.rubric_review import review_run

    review_run(console(), run, labels=labels, step=step, out=out)


@app.command()
def infer(
    pairs: Annotated[Path, typer.Argument(help="Preference pairs: prompt, chosen, rejected (.jsonl, .csv).")],
    judge: Annotated[str, typer.Option(help=f"Tests the principles. {JUDGE_HELP}")],
    out: Annotated[Path, typer.Option(help="New file for the principles that predict (.yaml).")],
    proposer: Annotated[str | None, typer.Option(help="Proposes the principles. Default: the judge.")] = None,
    from_pairs: Annotated[int, typer.Option(min=1, help="Number of pairs to propose from.")] = 50,
    held_out: Annotated[int, typer.Option(min=1, help="Number of other pairs to test on.")] = 50,
    most: Annotated[int, typer.Option(min=1, help="Number of principles to test, the most frequent ones.")] = 10,
    seed: Annotated[int, typer.Option(help="Seed of the split.")] = 0,
) -> None:
    """Find principles that explain preferences. Each is tested on held-out pairs; those that predict are written."""
    from vigneron.commands.rubric_infer import infer as infer_principles

    infer_principles(
        console(),
        pairs,
        judge=judge,
        proposer=proposer,
        out=out,
        from_pairs=from_pairs,
        held_out=held_out,
        most=most,
        seed=seed,
    )
