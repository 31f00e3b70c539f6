"""Commands that serve a web page: `view` and `label`."""

from pathlib import Path
from typing import Annotated

import typer

from vigneron.cli.options import JUDGE_HELP, Host, Port, SampleStep, console, importing, separator_option


def add_to(app: typer.Typer) -> None:
    for command in (view, label):
        app.command()(command)


def view(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(help="Runs, by folder or name, or folders of runs. Default: $VIGNERON_RUNS, or ./runs."),
    ] = None,
    port: Port = 8765,
    host: Host = "127.0.0.1",
    chat: Annotated[
        bool, typer.Option("--chat", help="Chat with the runs' checkpoints: loads their models, and their own code.")
    ] = False,
) -> None:
    """Browse runs in the browser: live curves, samples, configs."""
    from vigneron.files import default_runs_folder
    from vigneron.run_store.folder import run_path
    from vigneron.web.runs import refuse_no_runs
    from vigneron.web.serve import serve
    from vigneron.web.view import view_app

    folders = [run_path(run) for run in runs or ()] or [default_runs_folder()]
    refuse_no_runs(folders)
    pages = view_app(folders, chat=chat)
    serve(pages, port=port, host=host, tell=lambda address: typer.echo(f"open  {address}\nstop  Ctrl-C"))


def label(
    source: Annotated[
        Path | None, typer.Argument(help="A run (folder or name), or a file of completions to compare (.jsonl, .csv).")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="File to write. Default: ./pairs.jsonl, ./best.jsonl, ./steps.jsonl, or RUN/people.csv."),
    ] = None,
    labeller: Annotated[
        str | None, typer.Option("--as", help="Name of the labeller. Default: the user's account name.")
    ] = None,
    best: Annotated[
        bool, typer.Option("--best", help="Choose the best of a group of completions, as data for SFT.")
    ] = False,
    scores: Annotated[
        bool, typer.Option("--scores", help="Score answers of a rubric run, the judge's least confident first.")
    ] = False,
    solutions: Annotated[
        bool, typer.Option("--solutions", help="Label the steps of solutions, as data for a process model.")
    ] = False,
    by: Annotated[
        str | None,
        typer.Option(help="With --solutions: run of a process model; the most convincing wrong answers come first."),
    ] = None,
    separator: Annotated[str | None, separator_option("With --solutions: ")] = None,
    agreement: Annotated[
        bool, typer.Option("--agreement", help="Print the agreement between labellers and exit.")
    ] = False,
    sample: Annotated[str | None, typer.Option(help="Run or model that samples completions of --prompts.")] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="With --sample: file with a column `prompt` (.jsonl, .csv).")
    ] = None,
    group: Annotated[
        int | None,
        typer.Option(
            min=2,
            max=9,
            help="With --sample and --best or --judge: completions of each prompt. Default: 4; with --judge, 2.",
        ),
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0.01, help="With --sample: sampling temperature. Default: 1.")
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="With --sample: length limit. Default: the run's, or 128.")
    ] = None,
    step: SampleStep = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of items to label. Default: 200; with --judge, all.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the order of items and completions.")] = 0,
    judge: Annotated[str | None, typer.Option(help=f"Label pairs by a judge, without a page. {JUDGE_HELP}")] = None,
    principles: Annotated[
        str | None, typer.Option(help="With --judge: file of principles; one is drawn for each pair.")
    ] = None,
    principle: Annotated[str | None, typer.Option(help="With --principles: only the principle of this name.")] = None,
    people: Annotated[
        Path | None, typer.Option(help="With --judge: people's pairs, which are kept and win over the judge's.")
    ] = None,
    checker: Annotated[
        str | None,
        typer.Option(help="With --judge: check answers first, as `data.checker`; the judge decides among right ones."),
    ] = None,
    port: Port = 8766,
    host: Host = "127.0.0.1",
) -> None:
    """Label completions in the browser or by a judge: label runs/NAME"""
    with importing():
        from vigneron.commands.label import LabelOptions, agreement_line
        from vigneron.commands.label import label as serve_page
    from vigneron.run_store.folder import run_path

    source = None if source is None else run_path(source)
    options = LabelOptions(
        source, out, labeller, best, scores, sample, prompts, group, temperature, max_new_tokens, step, limit, seed,
        judge, principles, principle, people, checker, solutions, by, separator,
    )  # fmt: skip
    if agreement:
        typer.echo(agreement_line(options))
        return
    if judge is not None:
        from vigneron.commands.label_by_judge import label_by_judge

        label_by_judge(console(), options)
        return
    serve_page(options, port=port, host=host, tell=typer.echo)
