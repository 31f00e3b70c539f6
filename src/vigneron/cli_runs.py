"""Verbs that look at runs: list them, show one, export its model."""

import json
from pathlib import Path
from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
RunPath = Annotated[Path, typer.Argument(help="A run's folder.")]


def add_to(app: typer.Typer) -> None:
    for verb in (runs, show, methods):
        app.command()(verb)


def runs(
    folder: Annotated[Path | None, typer.Argument(help="Where runs are kept (VIGNERON_RUNS, or ./runs).")] = None,
    sizes: Annotated[bool, typer.Option("--sizes", help="The largest first, not the newest.")] = False,
    as_json: AsJson = False,
) -> None:
    """List runs: their state, their last figures, and what they take of the disk."""
    from rich.console import Console

    from vigneron.folder.run_folder import default_runs_folder
    from vigneron.report.run_list import list_runs, print_runs

    found = list_runs(folder or default_runs_folder(), by_size=sizes)
    if as_json:
        typer.echo(json.dumps([run.as_json() for run in found], indent=1))
    elif not found:
        typer.echo(f"no run in '{folder or default_runs_folder()}' yet: `vigneron train RECIPE` makes one")
    else:
        print_runs(Console(), found)


def show(run: RunPath, as_json: AsJson = False) -> None:
    """Show a run: its state, config, figures, warnings and checkpoints, and how to go on."""
    from rich.console import Console

    from vigneron.report.looked_at import look_at, shown_json
    from vigneron.report.show import print_run

    seen = look_at(run)
    if as_json:
        typer.echo(json.dumps(shown_json(seen), indent=1))
    else:
        print_run(Console(), seen)


def methods(name: Annotated[str | None, typer.Argument(help="One of them: its keys.")] = None) -> None:
    """List the methods, or the config keys of one."""
    from vigneron.report.method_list import method_lines

    for line in method_lines(name):
        typer.echo(line)
