"""Commands that train: `train`, `resume`, `demo`."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from vigneron.cli.options import (
    AllowCode,
    Overrides,
    Processes,
    Recipe,
    RunPath,
    Runs,
    check_rubric_code,
    console,
    is_main_process,
)

if TYPE_CHECKING:
    from vigneron.config import Config

Name = Annotated[str | None, typer.Option(help="Name of the run. Default: the recipe's name and a number.")]


def add_to(app: typer.Typer) -> None:
    for command in (train, resume, demo):
        app.command()(command)


def train(
    recipe: Recipe,
    overrides: Overrides = None,
    name: Name = None,
    runs: Runs = None,
    profile: Annotated[bool, typer.Option("--profile", help="Print the time spent in each phase of a step.")] = False,
    nproc: Processes = 1,
    allow_code: AllowCode = False,
) -> None:
    """Train a recipe: vigneron train pgsrm-antonyms steps=50"""
    from vigneron.recipe import load_config

    config = load_config(recipe, overrides or [])
    check_rubric_code([config], allow_code)
    from vigneron.commands.train import check_names, train_run

    if is_main_process():  # another rank may come after the first one has made the folder
        check_names(config, name, runs)
    _launch_processes(config, nproc)
    train_run(console(), config, name=name, runs=runs, profile=profile, is_main=is_main_process())


def resume(
    run: RunPath,
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Config overrides, e.g. steps=400 to train further.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Device to resume on: auto, cpu, mps, cuda, cuda:N. Default: the run's.")
    ] = None,
    rubric: Annotated[str | None, typer.Option(help="Rubric to use instead of the run's.")] = None,
    weights_only: Annotated[
        bool, typer.Option("--weights-only", help="Load the weights only; start with new optimizer states.")
    ] = False,
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Resume even if the config or the data have changed.")
    ] = False,
    nproc: Processes = 1,
    allow_code: AllowCode = False,
) -> None:
    """Resume a run that was stopped or killed."""
    from vigneron.run_store.folder import RunFolder

    config = RunFolder.open(run).config(user_code=bool(overrides))  # a user's method says which keys it has
    if rubric is not None or allow_code:  # the run's own rubric was allowed when it was started
        from vigneron.rubric.code_items import check_code_allowed

        check_code_allowed([] if rubric is None else [rubric], allowed=allow_code)
    from vigneron.commands.train import changed_run, resume_run

    _launch_processes(changed_run(config, overrides or [], run), nproc)
    resume_run(
        console(),
        run,
        overrides or [],
        recipe=config.recipe,
        device=device,
        rubric=rubric,
        weights_only=weights_only,
        allow_changes=allow_changes,
        is_main=is_main_process(),
    )


def demo(overrides: Overrides = None, runs: Runs = None) -> None:
    """Train with PGSRM's reward and with two checks, and compare."""
    from vigneron.commands.demo import run_demo

    run_demo(console(), overrides or [], runs)


def _launch_processes(config: "Config", count: int) -> None:
    """With more than one process, this one only starts the others and waits for them."""
    if count == 1:
        return
    from vigneron.distributed.launch import check_ranks, launch

    check_ranks(config, count)
    raise SystemExit(launch(without_option(sys.argv[1:], "--nproc"), count))


def without_option(arguments: list[str], option: str) -> list[str]:
    """The arguments without an option and its value."""
    remaining, skip = [], False
    for argument in arguments:
        if not skip and argument != option and not argument.startswith(f"{option}="):
            remaining.append(argument)
        skip = not skip and argument == option
    return remaining
