"""The command line: parses arguments, calls `commands/`, prints. Heavy imports wait until a command needs them."""

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated

import typer

from vigneron.cli import constitution as constitution_commands
from vigneron.cli import pages as pages_commands
from vigneron.cli import process as process_commands
from vigneron.cli import roleplay as roleplay_commands
from vigneron.cli import rubric as rubric_commands
from vigneron.cli import runs as runs_commands
from vigneron.cli.key_options import refuse_key_as_option
from vigneron.cli.options import (
    AllowCode,
    Overrides,
    Processes,
    Recipe,
    RunPath,
    Runs,
    Step,
    check_rubric_code,
    console,
    importing,
    is_main_process,
    separator_option,
)
from vigneron.errors import UserError, visible

if TYPE_CHECKING:
    from vigneron.config import Config

app = typer.Typer(
    add_completion=False,
    invoke_without_command=True,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="RL post-training of language models, guided by a Python function, a reward model, a rubric that a judge "
    "scores, or reference answers.",
)
app.add_typer(rubric_commands.app, name="rubric")
app.add_typer(process_commands.app, name="process")

Name = Annotated[str | None, typer.Option(help="Name of the run. Default: the recipe's name and a number.")]


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks. Works in any position.")] = False,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.", is_eager=True)] = False,
) -> None:
    """`main` removes `--debug` from the arguments; it is declared here for the help text."""
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
    profile: Annotated[bool, typer.Option("--profile", help="Print the time spent in each phase of a step.")] = False,
    nproc: Processes = 1,
    allow_code: AllowCode = False,
) -> None:
    """Train a recipe: vigneron train pgsrm-antonyms steps=50"""
    from vigneron.recipe import load_config

    config = load_config(recipe, overrides or [])
    check_rubric_code([config], allow_code)
    _launch_processes(config, nproc)
    from vigneron.commands.train import train_run

    train_run(console(), config, name=name, runs=runs, profile=profile, is_main=is_main_process())


@app.command()
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

    config = RunFolder.open(run).config()
    if rubric is not None or allow_code:  # the run's own rubric was allowed when it was started
        from vigneron.rubric.code_items import check_code_allowed

        check_code_allowed([] if rubric is None else [rubric], allowed=allow_code)
    if nproc > 1:
        from vigneron.recipe import changed_config

        _launch_processes(changed_config(config, overrides, str(run)) if overrides else config, nproc)
    from vigneron.commands.train import resume_run

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


@app.command()
def demo(overrides: Overrides = None, runs: Runs = None) -> None:
    """Train with PGSRM's reward and with two checks, and compare."""
    from vigneron.commands.demo import run_demo

    run_demo(console(), overrides or [], runs)


@app.command()
def recipes() -> None:
    """List the built-in recipes."""
    from vigneron.recipe import load_config, recipe_names

    names = recipe_names()
    width = max(len(name) for name in names)
    for name in names:
        typer.echo(f"{name:<{width}}  {load_config(name).about}")


@app.command()
def init(recipe: Recipe, file: Annotated[Path, typer.Argument(help="New YAML file to write.")]) -> None:
    """Copy a recipe to a file for editing."""
    from vigneron.files import check_new_file
    from vigneron.recipe import recipe_text

    lines = recipe_text(recipe).splitlines(keepends=True)
    text = "".join(line for line in lines if not line.startswith("recipe:"))  # the copy is named after its file
    check_new_file(file, (".yaml", ".yml"))
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write '{file}': {error.strerror}") from error
    typer.echo(f"wrote {file}: edit it, then `vigneron train {file}`")


@app.command()
def validate(
    file: Recipe,
    overrides: Overrides = None,
    allow_code: AllowCode = False,
    probe: Annotated[
        bool, typer.Option("--probe", help="Sample the untrained model: share of hits, spread, what would help.")
    ] = False,
    samples: Annotated[int | None, typer.Option(min=1, max=2000, help="Samples of --probe; 256 by default.")] = None,
) -> None:
    """Check a recipe and its data without loading a model; say how much GPU memory it takes."""
    from vigneron.recipe import load_config

    if samples is not None and not probe:
        raise UserError("--samples has no effect without --probe")
    config = load_config(file, overrides or [])
    check_rubric_code([config], allow_code)
    from vigneron.commands.validate_data import validate_data

    data, notes = validate_data(config)
    for line in notes:
        typer.echo(line)
    with importing():
        from vigneron.commands.validate import validation_lines

    for line in validation_lines(config, data, file, (samples or 256) if probe else 0):
        typer.echo(line)


@app.command()
def parent(
    recipe: Recipe,
    overrides: Overrides = None,
    show: Annotated[int, typer.Option(min=0, help="Number of answers to show.")] = 20,
    out: Annotated[Path | None, typer.Option(help="Write the rows with their answers to this .jsonl file.")] = None,
) -> None:
    """Show the parent's answers before training. In PGSRM the parent is the model whose answers are the references."""
    from vigneron.recipe import load_config

    config = load_config(recipe, overrides or [])
    with importing():
        from vigneron.commands.parent import review_parent

    review_parent(console(), config, recipe, show=show, out=out)


@app.command()
def sample(
    recipe: Recipe,
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option(help="New .jsonl file for the samples.")] = Path("samples.jsonl"),
    samples: Annotated[int, typer.Option(min=1, help="Samples of each training prompt.")] = 16,
    allow_code: AllowCode = False,
) -> None:
    """Draw samples from a recipe's model and score them by its reward, for methods that train on recorded samples."""
    from vigneron.recipe import load_config

    config = load_config(recipe, overrides or [])
    check_rubric_code([config], allow_code)
    with importing():
        from vigneron.api import record_samples
    from vigneron.training.record_samples import training_overrides

    done = record_samples(config, out=out, samples=samples, notice=lambda text: typer.echo(f"note: {visible(text)}"))
    typer.echo(f"wrote {done.file}: {done.rows} samples, mean reward {done.mean_reward:.3f}")
    if done.held_out is not None:
        typer.echo(f"wrote {done.held_out}: the held-out prompts")
    changes = [*(overrides or []), *training_overrides(config, done, samples)]
    typer.echo(f"train  {shlex.join(['vigneron', 'train', recipe, *changes])}")


TAKE_OVERRIDES = ("train", "resume", "demo", "validate", "parent", "sample", "compare")
"""Commands with `key=value` arguments."""

# Options of `eval` and what they belong to.
NEEDS = {"--by": "--best-of", "--combine": "--by", "--expand": "--beam", "--separator": "--beam"}


@app.command(name="eval")
def evaluate(
    run: RunPath,
    step: Step = None,
    file: Annotated[
        Path | None, typer.Option(help="Rows to evaluate on (.jsonl, .csv). Default: the held-out rows.")
    ] = None,
    show: Annotated[int, typer.Option(help="Number of completions to show.")] = 10,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Measure pass@k instead, from this many sampled completions per prompt.")
    ] = None,
    k: Annotated[
        str | None, typer.Option("--k", help="With --samples: values of k, as 1,4,8. Default: 1, 2, 4, … up to it.")
    ] = None,
    best_of: Annotated[
        int | None,
        typer.Option(min=2, help="Choose among this many samples, by --by or the run's value (oreo)."),
    ] = None,
    by: Annotated[
        str | None, typer.Option(help="With --best-of: run or folder of a process, reward or preference model.")
    ] = None,
    combine: Annotated[
        str | None, typer.Option(help="With --by: min (the default), last, product or mean over steps.")
    ] = None,
    beam: Annotated[
        int | None, typer.Option(min=1, help="Also a beam search over steps by the run's value (oreo), of this width.")
    ] = None,
    expand: Annotated[
        int | None, typer.Option(min=1, help="With --beam: continuations of each beam in a step. Default: 4.")
    ] = None,
    separator: Annotated[str | None, separator_option("With --beam: ")] = None,
    inspect_logs: Annotated[
        Path | None, typer.Option(help="Also write an Inspect log into this folder, for `inspect view --log-dir`.")
    ] = None,
) -> None:
    """Evaluate a run on held-out prompts, with greedy completions; or pass@k, with sampled ones."""
    from vigneron.commands.pass_at_k import chosen_k

    ks = chosen_k(k, samples)
    for option, value, needed in (
        ("--by", by, best_of),
        ("--combine", combine, by),
        ("--expand", expand, beam),
        ("--separator", separator, beam),
    ):
        if value is not None and needed is None:
            raise UserError(f"{option} has no effect without {NEEDS[option]}")
    if samples is not None and (best_of is not None or beam is not None):
        raise UserError("--samples measures pass@k alone: leave out --best-of and --beam")
    if inspect_logs is not None and (samples is not None or by is not None):
        raise UserError("--inspect-logs writes greedy completions: leave out --samples and --by")
    if by is not None and beam is not None:
        raise UserError("--beam searches by the run's own value: leave out --by")
    rows = None
    if file is not None:
        from vigneron.run_data.reference_answers import load_evaluation_rows
        from vigneron.run_store.folder import RunFolder

        rows = load_evaluation_rows(
            RunFolder.open(run).config(), file, lambda text: typer.echo(f"note: {visible(text)}")
        )
    if best_of is not None and by is not None:
        from vigneron.commands.best_of import best_of as best_of_samples
        from vigneron.commands.best_of import print_best_of

        combine = combine or "min"
        if combine not in ("min", "last", "product", "mean"):
            raise UserError(f"--combine: expected min, last, product or mean, not '{combine}'")
        print_best_of(console(), best_of_samples(run, by, best_of, rows, step=step, combine=combine), by)
        return
    with importing():
        from vigneron.api import load_run
    from vigneron.report.tables import conversation_lines, metrics_table, samples_table
    from vigneron.report.terminal import say

    out, loaded = console(), load_run(run, step=step)
    if samples is not None:
        from vigneron.commands.pass_at_k import pass_table

        out.print(pass_table(loaded.pass_at_k(ks, samples=samples, rows=rows)))
        return
    metrics, completions = loaded.evaluate_samples(rows)
    if best_of is not None or beam is not None:
        metrics |= loaded.evaluate_by_value(
            rows, best_of=best_of, beam=beam, expand=expand or 4, separator=separator or "\n"
        )
    if loaded.config.environment is not None:
        for sample in completions[:show]:
            reward = "missing" if sample.reward is None else f"{sample.reward:.4g}"
            role = f", {sample.extras['role']}" if "role" in sample.extras else ""
            say(out, "\n".join([f"--- sample {sample.sample}{role}, reward {reward} ---", *conversation_lines(sample)]))
    elif show and completions:
        out.print(samples_table(completions[:show]))
    out.print(metrics_table(metrics))
    if inspect_logs is not None:
        from vigneron.commands.inspect_log import write_inspect_log

        say(out, f"wrote {write_inspect_log(inspect_logs, loaded, metrics, completions)}")


@app.command()
def chat(
    run: RunPath,
    step: Step = None,
    temperature: Annotated[float, typer.Option(min=0.0, help="Sampling temperature; 0 is greedy.")] = 0.0,
    raw: Annotated[bool, typer.Option(help="Use the typed text as the prompt, without the task's template.")] = False,
    environment: Annotated[
        bool, typer.Option("--environment", help="Watch the model talk with the run's environment.")
    ] = False,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="Length limit of an answer, or of a turn. Default: the run's.")
    ] = None,
) -> None:
    """Chat with a run's model, before and after training."""
    with importing():
        from vigneron.commands.chat import chat_loop

    chat_loop(
        console(),
        run,
        step=step,
        temperature=temperature,
        raw=raw,
        environment=environment,
        max_new_tokens=max_new_tokens,
    )


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="One run, or several to compare: folders or names.")],
    out: Annotated[
        Path | None, typer.Option(help="File to write. Default: report.html in the first run's folder.")
    ] = None,
) -> None:
    """Write report.html: curves, completions before and after."""
    from vigneron.report.html import write_report

    typer.echo(f"wrote {write_report(runs, out)}")


@app.command()
def compare(
    recipes_or_runs: Annotated[
        list[str] | None,
        typer.Argument(
            help="Recipes to train, finished runs (folder, name or archive), and key=value overrides for all recipes."
        ),
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of seeds for each recipe. Default: 1.")] = None,
    runs: Runs = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the comparison. Default: made of the recipes' names.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the result. Default: the comparison's folder.")] = None,
    archive: Annotated[Path | None, typer.Option(help="Also pack the runs' logs into this file, NAME.tar.xz.")] = None,
    evaluations: Annotated[
        int, typer.Option(min=1, max=10, help="Take intervals of the mean of so many last evaluations.")
    ] = 1,
    allow_code: AllowCode = False,
) -> None:
    """Train recipes and compare them: compare A B --seeds 3"""
    from vigneron.commands.compare_plan import plan_comparison
    from vigneron.run_store.archive import archives_unpacked

    with archives_unpacked(recipes_or_runs or []) as arguments:
        plan = plan_comparison(
            arguments, seeds=seeds, runs=runs, name=name, out=out, archive=archive, evaluations=evaluations
        )
        check_rubric_code([planned.config for planned in plan.planned], allow_code)
        with importing():
            from vigneron.commands.compare import run_comparison

        run_comparison(console(), plan)


pages_commands.add_to(app)
constitution_commands.add_to(app)
roleplay_commands.add_to(app)
runs_commands.add_to(app)


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


@contextmanager
def _one_line_errors(debug: bool) -> Iterator[None]:
    """An error that the user can fix is one line on stderr and exit code 2."""
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
    except MemoryError:
        if debug:
            raise
        what = "the machine has too little memory for this command: use a smaller model, or fewer rows"
        typer.echo(f"error: out of memory: {what}", err=True)
        raise SystemExit(2) from None


def _show_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """With `--debug`, or for a bug of ours; secrets are redacted."""
    import traceback

    from vigneron.redaction import redacted

    sys.stderr.write(redacted("".join(traceback.format_exception(kind, error, trace))))


def main() -> None:
    sys.excepthook = _show_traceback
    arguments = sys.argv[1:]
    debug = "--debug" in arguments
    with _one_line_errors(debug):
        words = [argument for argument in arguments if argument != "--debug"]
        if words[:1] and words[0] in TAKE_OVERRIDES:
            command = typer.main.get_command(app).commands[words[0]]  # type: ignore[attr-defined]
            refuse_key_as_option(words[1:], {"--help", *(name for one in command.params for name in one.opts)})
        app(words)
