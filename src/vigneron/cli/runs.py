"""Commands about runs and methods: `runs`, `show`, `export`, `methods`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from vigneron.cli.options import AsJson, RunPath, Step, check_run, console, importing
from vigneron.errors import UserError


def add_to(app: typer.Typer) -> None:
    for command in (runs, show, export, methods):
        app.command()(command)


def runs(
    folder: Annotated[
        Path | None, typer.Argument(help="Folder of all runs. Default: $VIGNERON_RUNS, or ./runs.")
    ] = None,
    sizes: Annotated[bool, typer.Option("--sizes", help="Sort by size on disk, largest first.")] = False,
    as_json: AsJson = False,
) -> None:
    """List runs: state, last metrics, size on disk."""
    from vigneron.commands.runs import list_runs, print_runs
    from vigneron.files import default_runs_folder

    listed = list_runs(folder or default_runs_folder(), by_size=sizes)
    if as_json:
        typer.echo(json.dumps([run.as_json() for run in listed], indent=1))
    elif not listed:
        typer.echo(f"no runs in '{folder or default_runs_folder()}' yet: start one with `vigneron train RECIPE`")
    else:
        print_runs(console(), listed)


def show(run: RunPath, as_json: AsJson = False) -> None:
    """Show a run: state, config, metrics, warnings, checkpoints."""
    from vigneron.commands.show import print_run
    from vigneron.run_store.run_details import details_json, run_details

    details = run_details(run)
    if as_json:
        typer.echo(json.dumps(details_json(details), indent=1))
    else:
        print_run(console(), details)


def export(
    run: RunPath,
    folder: Annotated[Path, typer.Argument(help="New folder to write.")],
    step: Step = None,
    dtype: Annotated[str, typer.Option(help="Weights' dtype: float32, bfloat16 or float16.")] = "float32",
    push: Annotated[
        str | None, typer.Option(help="Also push to the Hugging Face Hub, as NAME/MODEL, with HF_TOKEN.")
    ] = None,
) -> None:
    """Export a run's model as a transformers folder. An adapter is merged, and the log-probs are verified."""
    if dtype not in ("float32", "bfloat16", "float16"):
        raise UserError(f"--dtype: expected float32, bfloat16 or float16, not '{dtype}'")
    check_run(run)
    with importing():
        from vigneron.commands.export import check_push
        from vigneron.commands.export import export as export_run
        from vigneron.commands.export import push as push_folder

    token = check_push(push) if push is not None else None

    done = export_run(run, folder, step=step, dtype=dtype)  # type: ignore[arg-type]
    typer.echo(f"wrote {done.path}: the model after step {done.step}, its tokenizer and its model card")
    typer.echo(
        f"verified on {done.texts} texts: log-probs differ from the run's model by at most {done.difference:.1e}"
    )
    if done.rounding:
        typer.echo(f"rounding to {dtype} changes log-probs by at most {done.rounding:.2g}")
    if push is not None and token is not None:
        typer.echo(f"pushed to {push_folder(done.path, push, token)}")


def methods(
    name: Annotated[str | None, typer.Argument(help="Name of a method, to list its config keys.")] = None,
) -> None:
    """List the methods, or the config keys of one method."""
    from vigneron.commands.methods import method_lines

    for line in method_lines(name):
        typer.echo(line)
