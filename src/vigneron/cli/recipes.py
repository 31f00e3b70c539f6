"""Commands about recipes: `recipes`, `init`, `validate`, `parent`, `sample`."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from vigneron.cli.options import AllowCode, Overrides, Recipe, check_rubric_code, console, importing
from vigneron.errors import UserError, visible


def add_to(app: typer.Typer) -> None:
    for command in (recipes, init, validate, parent, sample):
        app.command()(command)


def recipes() -> None:
    """List the built-in recipes."""
    from vigneron.recipe import load_config, recipe_names

    names = recipe_names()
    width = max(len(name) for name in names)
    for name in names:
        typer.echo(f"{name:<{width}}  {load_config(name).about}")


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


def validate(
    file: Recipe,
    overrides: Overrides = None,
    allow_code: AllowCode = False,
    probe: Annotated[
        bool, typer.Option("--probe", help="Sample the untrained model: share of hits, spread, what would help.")
    ] = False,
    samples: Annotated[
        int | None,
        typer.Option(min=1, max=2000, help="Samples, or games, of --probe; 256 by default, if no API is asked."),
    ] = None,
) -> None:
    """Check a recipe and its data without loading a model; say how much GPU memory it takes."""
    from vigneron.recipe import load_config

    if samples is not None and not probe:
        raise UserError("--samples has no effect without --probe")
    config = load_config(file, overrides or [])
    check_rubric_code([config], allow_code)
    if probe and samples is None:
        from vigneron.config.endpoints import endpoints_of_samples

        if asked := [*endpoints_of_samples(config)]:
            twice = ", and as many again with the rubric's prompts" if config.method.needs_rubric else ""
            raise UserError(
                f"--probe sends requests to {' and '.join(asked)}, which may cost money: say with --samples how many "
                f"samples it may take (256 is usual){twice}"
            )
    from vigneron.commands.validate_data import validate_data

    data, notes = validate_data(config)
    for line in notes:
        typer.echo(line)
    with importing():
        from vigneron.commands.validate import validation_lines

    for line in validation_lines(config, data, file, (samples or 256) if probe else 0):
        typer.echo(line)


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
