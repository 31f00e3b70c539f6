"""Verbs that look at runs: list them, show one, export its model."""

import json
from pathlib import Path
from typing import Annotated

import typer

from vigneron.errors import UserError

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
RunPath = Annotated[Path, typer.Argument(help="A run's folder.")]


def add_to(app: typer.Typer) -> None:
    for verb in (runs, show, export, methods):
        app.command()(verb)


def runs(
    folder: Annotated[Path | None, typer.Argument(help="Where runs are kept (VIGNERON_RUNS, or ./runs).")] = None,
    sizes: Annotated[bool, typer.Option("--sizes", help="The largest first, not the newest.")] = False,
    as_json: AsJson = False,
) -> None:
    """List runs: their state, their last figures, and what they take of the disk."""
    from rich.console import Console

    from vigneron.commands.runs import list_runs, print_runs
    from vigneron.run_store.folder import default_runs_folder

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

    from vigneron.commands.show import print_run
    from vigneron.run_store.run_details import details_json, run_details

    seen = run_details(run)
    if as_json:
        typer.echo(json.dumps(details_json(seen), indent=1))
    else:
        print_run(Console(), seen)


def export(
    run: RunPath,
    folder: Annotated[Path, typer.Argument(help="Where to write it: a new folder.")],
    step: Annotated[int | None, typer.Option(help="Which checkpoint; without it the newest.")] = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    push: Annotated[str | None, typer.Option(help="Also to a hub, as NAME/MODEL, with HF_TOKEN.")] = None,
) -> None:
    """Write a run's model as a transformers folder, its adapter merged, and check that it is the same model."""
    if dtype not in ("float32", "bfloat16", "float16"):
        raise UserError(f"--dtype: one of float32, bfloat16, float16, not '{dtype}'")
    from vigneron.commands.export import check_push
    from vigneron.commands.export import push as push_folder

    token = check_push(push) if push is not None else None
    from vigneron.commands.export import export as export_run

    done = export_run(run, folder, step=step, dtype=dtype)  # type: ignore[arg-type]
    typer.echo(f"wrote {done.path}: the model after step {done.step}, its tokenizer, and its card")
    typer.echo(f"checked on {done.texts} texts: it differs from the run's child by {done.difference:.1e} at most")
    if done.rounding:
        typer.echo(f"rounding to {dtype} moves the child's log-probs by {done.rounding:.2g} at most")
    if push is not None and token is not None:
        typer.echo(f"pushed to {push_folder(done.path, push, token)}")


def methods(name: Annotated[str | None, typer.Argument(help="One of them: its keys.")] = None) -> None:
    """List the methods, or the config keys of one."""
    from vigneron.commands.methods import method_lines

    for line in method_lines(name):
        typer.echo(line)
