"""The command line: parse, call, print; nothing else. Heavy imports wait until a verb needs them."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated

import typer

from vigneron.cli import pages as pages_commands
from vigneron.cli import rubric as rubric_commands
from vigneron.cli import runs as runs_commands
from vigneron.errors import UserError, visible

if TYPE_CHECKING:
    from rich.console import Console

    from vigneron.api import Trained
    from vigneron.config import Config

app = typer.Typer(
    add_completion=False,
    invoke_without_command=True,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Grow small language models along a stronger guide.",
)
app.add_typer(rubric_commands.app, name="rubric")

Recipe = Annotated[str, typer.Argument(help="A built-in recipe's name, or a YAML file.")]
Overrides = Annotated[list[str] | None, typer.Argument(help="key=value, as in optimizer.actor_lr=1e-5")]
Name = Annotated[str | None, typer.Option(help="The run's name; without it the recipe's, numbered.")]
Runs = Annotated[Path | None, typer.Option(help="Where runs are kept (VIGNERON_RUNS, or ./runs).")]
Processes = Annotated[int, typer.Option(min=1, help="Train in so many processes on this machine, a GPU for each.")]
RunPath = Annotated[Path, typer.Argument(help="A run's folder.")]


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks; may stand anywhere.")] = False,
    version: Annotated[bool, typer.Option("--version", help="Show the version.", is_eager=True)] = False,
) -> None:
    """`--debug` is taken out of the arguments by `main`; it stands here for the help."""
    if version:
        from vigneron import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.command()
def train(
    recipe: Recipe,
    overrides: Overrides = None,
    name: Name = None,
    runs: Runs = None,
    profile: Annotated[bool, typer.Option("--profile", help="Show at the end where a step's time went.")] = False,
    nproc: Processes = 1,
) -> None:
    """Train a recipe: vigneron train pgsrm-antonyms steps=50"""
    from vigneron.recipe import load_config

    config = load_config(recipe, overrides or [])
    _launched(config, nproc)
    from vigneron import api
    from vigneron.report.terminal import TerminalView

    console = _console()
    with _profiled(console, profile):
        with _reported_at_the_end(console), TerminalView(console, config.recipe) as view:
            trained = api.train(config, name=name, runs=runs, view=view)
        _finished(console, trained)


@contextmanager
def _profiled(console: "Console", wanted: bool) -> Iterator[None]:
    if not wanted:
        yield
        return
    from vigneron.report.terminal import profile_table
    from vigneron.timing import recording_timings

    with recording_timings() as watch:
        try:
            yield
        finally:  # also of a run that was stopped
            if watch.steps:
                console.print(profile_table(watch.steps))


@app.command()
def resume(
    run: RunPath,
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value: steps=400 goes past the end.")] = None,
    device: Annotated[str | None, typer.Option(help="Where to go on, if not where it was: auto, cpu, cuda.")] = None,
    rubric: Annotated[str | None, typer.Option(help="A rubric to go on by, instead of the run's.")] = None,
    weights_only: Annotated[bool, typer.Option("--weights-only", help="Go on with new optimizers.")] = False,
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Go on though its config or its data have changed.")
    ] = False,
    nproc: Processes = 1,
) -> None:
    """Go on with a run that was stopped or killed."""
    from vigneron.run_store.folder import RunFolder

    config = RunFolder.open(run).config()
    if nproc > 1:
        from vigneron.recipe import changed_config

        _launched(changed_config(config, overrides, str(run)) if overrides else config, nproc)
    from vigneron import api
    from vigneron.report.terminal import TerminalView

    console = _console()
    with _reported_at_the_end(console), TerminalView(console, config.recipe) as view:
        trained = api.resume(
            run,
            *(overrides or []),
            device=device,
            rubric=rubric,
            weights_only=weights_only,
            allow_changes=allow_changes,
            view=view,
        )
    _finished(console, trained)


@app.command()
def demo(overrides: Overrides = None, runs: Runs = None) -> None:
    """PGSRM against the binary reward, on a laptop, in minutes."""
    from vigneron.commands.demo import run_demo

    run_demo(_console(), overrides or [], runs)


@app.command()
def recipes() -> None:
    """List the built-in recipes."""
    from vigneron.recipe import load_config, recipe_names

    names = recipe_names()
    width = max(len(name) for name in names)
    for name in names:
        typer.echo(f"{name:<{width}}  {load_config(name).about}")


@app.command()
def init(recipe: Recipe, file: Annotated[Path, typer.Argument(help="Where to write it.")]) -> None:
    """Copy a recipe to a file, to edit it."""
    from vigneron.recipe import recipe_text

    lines = recipe_text(recipe).splitlines(keepends=True)
    text = "".join(line for line in lines if not line.startswith("recipe:"))  # the copy goes by its file's name
    if file.exists():
        raise UserError(f"'{file}' exists: choose another name")
    if file.suffix not in (".yaml", ".yml"):
        raise UserError(f"'{file}' should end in .yaml")
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write '{file}': {error.strerror}") from error
    typer.echo(f"wrote {file}: edit it, then `vigneron train {file}`")


@app.command()
def validate(file: Recipe, overrides: Overrides = None) -> None:
    """Check a recipe and its data, without loading a model."""
    from vigneron.recipe import load_config

    config = load_config(file, overrides or [])
    from vigneron.policy.load import check_model_name
    from vigneron.rewards.build import build_reward
    from vigneron.rewards.checkers import load_checker
    from vigneron.run_data.load import checker_name, load_data
    from vigneron.trackers.tracking import check_trackers
    from vigneron.training.setup.resolve import newest_weights, resolved

    check_trackers(config.trackers)
    data = load_data(config)
    config = resolved(config)
    check_model_name(config.model.name)
    build_reward(config.reward, load_checker(checker_name(config)), weights=partial(newest_weights, key="reward.file"))
    for text in data.notices:
        typer.echo(f"note: {visible(text)}")
    samples = config.prompts_per_step * config.group_size
    if config.parent is not None:
        from vigneron.run_data.reference_answers import count_cached

        cached, to_ask = count_cached(config, data)
        typer.echo(f"the parent {config.parent.model}: {cached} answers in the cache, {to_ask} to ask")
    typer.echo(f"{file} is valid: {len(data.train)} prompts to train on, {len(data.held_out)} held out")
    if config.method.reads != "prompts":
        of = "pairs" if config.method.reads == "pairs" else "demonstrations"
        typer.echo(f"{config.steps} steps of {config.prompts_per_step} {of}")
        return
    typer.echo(
        f"{config.steps} steps of {samples} samples ({config.prompts_per_step} prompts × {config.group_size}), "
        f"up to {config.max_new_tokens} new tokens each: {config.steps * samples} samples in all"
    )


@app.command()
def parent(
    recipe: Recipe,
    overrides: Overrides = None,
    show: Annotated[int, typer.Option(min=0, help="How many answers to show.")] = 20,
    out: Annotated[Path | None, typer.Option(help="Write the rows with their answers to a .jsonl file.")] = None,
) -> None:
    """Ask a recipe's parent, and show its answers before training."""
    from vigneron.recipe import load_config

    config = load_config(recipe, overrides or [])
    from vigneron.commands.parent import review_parent

    review_parent(_console(), config, recipe, show=show, out=out)


@app.command(name="eval")
def evaluate(
    run: RunPath,
    step: Annotated[int | None, typer.Option(help="Which checkpoint; without it the newest.")] = None,
    file: Annotated[Path | None, typer.Option(help="Rows to evaluate on instead (.jsonl, .csv).")] = None,
    show: Annotated[int, typer.Option(help="How many completions to show.")] = 10,
) -> None:
    """Greedy completions of the held-out part, scored."""
    rows = None
    if file is not None:
        from vigneron.run_data.reference_answers import load_evaluation_rows
        from vigneron.run_store.folder import RunFolder

        rows = load_evaluation_rows(
            RunFolder.open(run).config(), file, lambda text: typer.echo(f"note: {visible(text)}")
        )
    from vigneron.api import load_run
    from vigneron.report.tables import metrics_table, samples_table

    metrics, samples = load_run(run, step=step).evaluate_samples(rows)
    console = _console()
    if show and samples:
        console.print(samples_table(samples[:show]))
    console.print(metrics_table(metrics))


@app.command()
def chat(
    run: RunPath,
    step: Annotated[int | None, typer.Option(help="Which checkpoint; without it the newest.")] = None,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.")] = 0.0,
    raw: Annotated[bool, typer.Option(help="Send what is typed as it is, not in the task's prompt.")] = False,
) -> None:
    """Talk to the trained child, beside the child as it was before."""
    from vigneron.commands.chat import chat_loop

    chat_loop(_console(), run, step=step, temperature=temperature, raw=raw)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="One run, or several to compare.")],
    out: Annotated[Path | None, typer.Option(help="Where to write it; without it into the first run's folder.")] = None,
) -> None:
    """Write report.html: curves side by side, completions before and after."""
    from vigneron.report.html import write_report

    typer.echo(f"wrote {write_report(runs, out)}")


@app.command()
def compare(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            help="Recipes to train, runs (folders of runs, archives) as they are, key=value for all recipes."
        ),
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Train each recipe so often; without it once.")] = None,
    runs: Runs = None,
    name: Annotated[str | None, typer.Option(help="The comparison's name; without it made of the recipes'.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where to write the result; without it beside the runs.")] = None,
    archive: Annotated[Path | None, typer.Option(help="Pack the runs' logs into this file too, NAME.tar.xz.")] = None,
) -> None:
    """Train recipes and set them side by side: vigneron compare A B --seeds 3"""
    from vigneron.commands.compare_plan import plan_comparison
    from vigneron.run_store.archive import archives_unpacked

    with archives_unpacked(what or []) as words:
        plan = plan_comparison(words, seeds=seeds, runs=runs, name=name, out=out, archive=archive)
        from vigneron.commands.compare import carry_out

        carry_out(_console(), plan)


pages_commands.add_to(app)
runs_commands.add_to(app)


def _launched(config: "Config", count: int) -> None:
    """With several processes this one starts them, and does nothing else."""
    if count == 1:
        return
    from vigneron.distributed.checks import check_ranks
    from vigneron.distributed.launch import launch

    check_ranks(config, count)
    raise SystemExit(launch(without_option(sys.argv[1:], "--nproc"), count))


def without_option(arguments: list[str], option: str) -> list[str]:
    """A command without an option and its value."""
    kept, skip = [], False
    for argument in arguments:
        if not skip and argument != option and not argument.startswith(f"{option}="):
            kept.append(argument)
        skip = not skip and argument == option
    return kept


def _writes() -> bool:
    """Whether this process says and writes what a run comes to: of several ranks, the first."""
    return os.environ.get("WORLD_SIZE", "1") == "1" or os.environ.get("RANK", "0") == "0"


def _console() -> "Console":
    from rich.console import Console

    return Console() if _writes() else Console(file=open(os.devnull, "w"))


@contextmanager
def _reported_at_the_end(console: "Console") -> Iterator[None]:
    """A run that was asked to stop in its last step is finished: it has its report too."""
    from vigneron.training.signals import Stopped

    try:
        yield
    except Stopped as stopped:
        if stopped.finished is not None and _writes():
            from vigneron.report.html import write_report
            from vigneron.report.terminal import say

            say(console, f"report  {write_report([stopped.finished])}")
        raise


def _finished(console: "Console", trained: "Trained") -> None:
    if not _writes():
        return
    from vigneron.report.html import write_report
    from vigneron.report.terminal import say

    path = write_report([trained.folder])
    say(console, f"run     {trained.folder}")
    say(console, f"report  {path}")
    if trained.config.method.trains == "scorer":
        kind = "preference" if trained.config.method.joins_pairs else "model"
        say(console, f"use it  reward: {{kind: {kind}, model: {trained.folder}}}")
    else:
        say(console, f"talk    vigneron chat {trained.folder}")
    say(console, f"look    vigneron view {trained.folder}")


@contextmanager
def _one_line_errors(debug: bool) -> Iterator[None]:
    """What a user can mend is one line on stderr and exit code 2."""
    try:
        yield
    except UserError as error:
        if debug:
            raise
        if error.reported_elsewhere:
            raise SystemExit(2) from None
        for line in str(error).splitlines():
            typer.echo(f"error: {line}", err=True)
        if error.exit_immediately:
            with suppress(OSError):
                sys.stdout.flush()
            os._exit(2)
        raise SystemExit(2) from None


def _show_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Of `--debug`, or of a fault of ours: no key stands in it."""
    import traceback

    from vigneron.redaction import redacted

    sys.stderr.write(redacted("".join(traceback.format_exception(kind, error, trace))))


def main() -> None:
    sys.excepthook = _show_traceback
    arguments = sys.argv[1:]
    debug = "--debug" in arguments
    with _one_line_errors(debug):
        app([argument for argument in arguments if argument != "--debug"])
