"""Verbs that serve a page: look at runs, judge completions."""

from pathlib import Path
from typing import Annotated

import typer


def add_to(app: typer.Typer) -> None:
    for verb in (view, label):
        app.command()(verb)


def view(
    runs: Annotated[
        list[Path] | None, typer.Argument(help="Runs, or folders of runs; without them where runs are kept.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 is any free one.")] = 8765,
    host: Annotated[str, typer.Option(help="Where to listen; 127.0.0.1 is this machine alone.")] = "127.0.0.1",
) -> None:
    """Look at runs in the browser: live curves, samples, differences."""
    from vigneron.run_store.folder import default_runs_folder
    from vigneron.web.runs import refuse_no_runs
    from vigneron.web.serve import serve
    from vigneron.web.view import view_app

    places = runs or [default_runs_folder()]
    refuse_no_runs(places)
    pages = view_app(places)
    serve(pages, port=port, host=host, tell=lambda address: typer.echo(f"open  {address}\nstop  Ctrl-C"))


def label(
    source: Annotated[
        Path | None, typer.Argument(help="A run's folder, or a file with completions to compare (.jsonl, .csv).")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Where to write; without it pairs.jsonl or best.jsonl here, scores in the run's folder."),
    ] = None,
    labeller: Annotated[str | None, typer.Option("--as", help="Who labels; without it the account's name.")] = None,
    best: Annotated[bool, typer.Option("--best", help="Pick the best of a group, for fine-tuning on it.")] = False,
    scores: Annotated[bool, typer.Option("--scores", help="Score what a rubric's judge was unsure of.")] = False,
    agreement: Annotated[bool, typer.Option("--agreement", help="Only say how far the labellers agree.")] = False,
    sample: Annotated[str | None, typer.Option(help="A run or a model that completes --prompts on the spot.")] = None,
    prompts: Annotated[Path | None, typer.Option(help="For --sample: rows with `prompt` (.jsonl, .csv).")] = None,
    group: Annotated[int | None, typer.Option(min=2, max=9, help="For --sample --best: how many; 4.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0.01, help="For --sample; 1.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="For --sample; the run's, or 128.")] = None,
    step: Annotated[int | None, typer.Option(help="Only a run's samples of this step.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many to judge at most.")] = 200,
    seed: Annotated[int, typer.Option(help="Of the order in which things are shown.")] = 0,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 is any free one.")] = 8766,
    host: Annotated[str, typer.Option(help="Where to listen; 127.0.0.1 is this machine alone.")] = "127.0.0.1",
) -> None:
    """Judge completions in the browser: vigneron label runs/NAME --out pairs.jsonl"""
    from vigneron.commands.label import Asked, agreement_line
    from vigneron.commands.label import label as serve_page

    asked = Asked(
        source, out, labeller, best, scores, sample, prompts, group, temperature, max_new_tokens, step, limit, seed
    )
    if agreement:
        typer.echo(agreement_line(asked))
        return
    serve_page(asked, port=port, host=host, tell=typer.echo)
