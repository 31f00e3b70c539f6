"""The command `roleplay`."""

from typing import Annotated

import typer

from vigneron.cli.constitution import Model, Out
from vigneron.cli.options import console


def add_to(app: typer.Typer) -> None:
    app.command()(roleplay)


def roleplay(
    scenes: Annotated[str, typer.Argument(metavar="SCENES", help="File of scenes and characters, or a bundled name.")],
    model: Model,
    out: Out,
    rounds: Annotated[int, typer.Option(min=1, max=4, help="Turns of everybody in a scene.")] = 1,
    turns: Annotated[int, typer.Option(min=1, max=10, help="Questions of an interview.")] = 3,
    samples: Annotated[int, typer.Option(min=1, help="Times that each scene and interview is played.")] = 1,
    temperature: Annotated[float | None, typer.Option(min=0.01, help="Sampling temperature. Default: greedy.")] = None,
) -> None:
    """Let one model play all roles of scenes and interviews, as data for SFT (MATRIX, DITTO)."""
    from vigneron.commands.roleplay import RoleplayOptions, write_roleplay

    write_roleplay(console(), RoleplayOptions(scenes, model, out, rounds, turns, samples, temperature))
