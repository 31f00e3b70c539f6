"""`vigneron rubric …`: the verbs for rubric files. Heavy imports wait until a verb needs them."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Rubrics: check one, before it is spent on.")

RubricFile = Annotated[str, typer.Argument(help="A .yaml or .json file, or the name of an example.")]


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
        from vigneron.rollout.dataset import read_rows
        from vigneron.rubric.rows import check_rubric_rows

        rows = read_rows(data)
        check_rubric_rows(rubric, rows, f"'{data}'")
    from rich.console import Console

    from vigneron.report.rubric import rubric_table

    Console().print(rubric_table(rubric))
    for notice in notices:
        typer.echo(f"note: {notice}")
    if data is not None:
        typer.echo(f"{data}: {len(rows)} rows, each with a category and the columns it needs")
    typer.echo(f"{file} is valid: version {one_line(rubric_version(rubric))}")


@app.command()
def schema() -> None:
    """Print the JSON Schema of rubric files."""
    from vigneron.rubric.schema import rubric_schema_text

    typer.echo(rubric_schema_text(), nl=False)
