"""Commands about what runs have reached: `eval`, `chat`, `report`, `compare`."""

from pathlib import Path
from typing import Annotated

import typer

from vigneron.cli.options import (
    AllowCode,
    RunPath,
    Runs,
    Step,
    check_rubric_code,
    check_run,
    console,
    importing,
    separator_option,
)
from vigneron.errors import UserError, visible

# Options of `eval` and what they belong to.
NEEDS = {"--by": "--best-of", "--combine": "--by", "--expand": "--beam", "--separator": "--beam"}


def add_to(app: typer.Typer) -> None:
    app.command(name="eval")(evaluate)
    for command in (chat, report, compare):
        app.command()(command)


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
    check_run(run)
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
            heading = f"--- sample {sample.sample}{role}, reward {reward} ---"
            say(out, "\n".join([heading, sample.prompt, *conversation_lines(sample)]))
    elif show and completions:
        out.print(samples_table(completions[:show]))
    out.print(metrics_table(metrics))
    if inspect_logs is not None:
        from vigneron.commands.inspect_log import write_inspect_log

        say(out, f"wrote {write_inspect_log(inspect_logs, loaded, metrics, completions)}")


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
    check_run(run)
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


def report(
    runs: Annotated[list[Path], typer.Argument(help="One run, or several to compare: folders or names.")],
    out: Annotated[
        Path | None, typer.Option(help="File to write. Default: report.html in the first run's folder.")
    ] = None,
) -> None:
    """Write report.html: curves, completions before and after."""
    for run in runs:
        check_run(run)
    from vigneron.report.html import write_report

    typer.echo(f"wrote {write_report(runs, out)}")


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
