"""`vigneron process …`: commands for process supervision. Heavy imports wait until a command needs them."""

from pathlib import Path
from typing import Annotated

import typer

from vigneron.cli.options import separator_option

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Process supervision: labels of solutions' steps.")


@app.callback()
def group() -> None:
    """Process supervision: labels of solutions' steps."""


@app.command()
def label(
    source: Annotated[str, typer.Argument(help="A run (folder or name), or a model, that continues solutions.")],
    file: Annotated[
        Path | None,
        typer.Argument(
            help="Rows with `prompt`, `answer` (the reference) and `completion` (the solution; else sampled). "
            "Default: the run's training prompts."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="New .jsonl file to write.")] = Path("steps.jsonl"),
    continuations: Annotated[int, typer.Option(min=1, help="Continuations from each step's end.")] = 8,
    solutions: Annotated[
        int | None, typer.Option(min=1, help="Solutions to sample for each prompt, if rows have none. Default: 1.")
    ] = None,
    hard: Annotated[
        bool, typer.Option("--hard", help="Label 1 if any continuation ends right. Default: the share that does.")
    ] = False,
    separator: Annotated[str | None, separator_option()] = None,
    checker: Annotated[str | None, typer.Option(help="As data.checker. Default: the run's, or equality.")] = None,
    temperature: Annotated[float, typer.Option(min=0.01, help="Sampling temperature.")] = 1.0,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="Length limit of a continuation. Default: the run's, or 128.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of all draws.")] = 0,
) -> None:
    """Label steps by Monte Carlo: the share of continuations from a step's end that end right."""
    from vigneron.commands.process import ProcessLabelOptions, label_steps

    options = ProcessLabelOptions(
        source, file, out, continuations, solutions, hard, separator or "\n", checker, temperature, max_new_tokens, seed
    )
    label_steps(options, typer.echo)
