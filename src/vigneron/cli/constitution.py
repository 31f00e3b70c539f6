"""Commands of Constitutional AI and RLAIF: `revise` and `pairs`."""

from pathlib import Path
from typing import Annotated

import typer

from vigneron.cli.options import JUDGE_HELP, console

Source = Annotated[str, typer.Argument(metavar="DATA", help="File with a column `prompt` (.jsonl, .csv), or a recipe.")]
PrinciplesFile = Annotated[str, typer.Option(help="File of principles (.yaml, .json), or a bundled name.")]
Model = Annotated[str, typer.Option(help="Model that writes: a mapping as for --judge, or a file that has one.")]
Out = Annotated[Path, typer.Option(help="New .jsonl file to write.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Number of prompts. Default: all.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the drawn principles and of the samples.")]


def add_to(app: typer.Typer) -> None:
    for command in (revise, pairs):
        app.command()(command)


def revise(
    source: Source,
    principles: PrinciplesFile,
    model: Model,
    out: Out,
    revisions: Annotated[int, typer.Option(min=1, max=4, help="Revisions of each answer.")] = 1,
    answers: Annotated[
        str | None, typer.Option(help="Column with the first answers. Default: the model writes them.")
    ] = None,
    sample: Annotated[str | None, typer.Option(help="Run or model that samples the first answers.")] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0.01, help="With --sample: sampling temperature. Default: 1.")
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="With --sample: length limit. Default: the run's, or 128.")
    ] = None,
    limit: Limit = None,
    seed: Seed = 0,
) -> None:
    """Criticise and revise answers by principles, as data for SFT."""
    from vigneron.commands.revise import ReviseOptions, revise_rows

    options = ReviseOptions(
        source, principles, model, out, revisions, answers, sample, temperature, max_new_tokens, limit, seed
    )
    revise_rows(console(), options)


def pairs(
    source: Source,
    principles: PrinciplesFile,
    model: Model,
    out: Out,
    judge: Annotated[str | None, typer.Option(help=f"For level 3. {JUDGE_HELP}")] = None,
    levels: Annotated[str, typer.Option(help="Levels to write, e.g. 1,2.")] = "1,2,3",
    temperature: Annotated[float, typer.Option(min=0.01, help="Sampling temperature of random answers.")] = 1.0,
    limit: Limit = None,
    seed: Seed = 0,
) -> None:
    """Write preference pairs from easy to hard. Guided good and bad answers, then random ones: the column `level`."""
    from vigneron.commands.graded_pairs import write_graded_pairs

    write_graded_pairs(
        console(),
        source,
        principles=principles,
        model=model,
        judge=judge,
        out=out,
        levels=levels,
        temperature=temperature,
        limit=limit,
        seed=seed,
    )
