"""Arguments and options that several commands share."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vigneron.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from vigneron.config import Config

Recipe = Annotated[str, typer.Argument(help="Name of a built-in recipe, or path of a YAML file.")]
Overrides = Annotated[list[str] | None, typer.Argument(help="Config overrides, e.g. optimizer.actor_lr=1e-5")]
Runs = Annotated[Path | None, typer.Option(help="Folder of all runs. Default: $VIGNERON_RUNS, or ./runs.")]
Processes = Annotated[int, typer.Option(min=1, help="Number of local processes, one GPU each.")]
RunPath = Annotated[Path, typer.Argument(help="The run: its folder, or its name in the folder of runs.")]
Step = Annotated[int | None, typer.Option(help="Step of the checkpoint. Default: the newest.")]
SampleStep = Annotated[int | None, typer.Option(help="Only samples of this training step.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 picks a free one.")]
Host = Annotated[str, typer.Option(help="Address to bind to; 127.0.0.1 is this machine only.")]
JUDGE_HELP = "Judge model: a reward.judge mapping in YAML or JSON, or a recipe or config file that has one."
AllowCode = Annotated[
    bool, typer.Option("--allow-code", help="Let the rubric's items with `flow: python` run their functions.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def separator_option(when: str = "") -> Any:
    """The option `--separator`. A shell's '\\n' is a line break."""
    return typer.Option(
        parser=_separator, metavar="TEXT", help=when + r"What stands between steps. Default: \n, a line break."
    )


def _separator(text: str) -> str:
    if not text:
        raise UserError("--separator is empty: give what stands between steps")
    return text.replace(r"\n", "\n")


def check_rubric_code(configs: "Sequence[Config]", allowed: bool) -> None:
    """Before anything of a rubric is imported."""
    if allowed or any(config.reward.kind == "rubric" for config in configs):
        from vigneron.rubric.code_items import check_code_allowed, rubrics_of

        check_code_allowed([file for config in configs for file in rubrics_of(config)], allowed=allowed)


def check_run(run: Path) -> None:
    """Raise for a path that is no run's, before imports that take seconds."""
    from vigneron.run_store.folder import RunFolder

    RunFolder.open(run)


@contextmanager
def importing() -> Iterator[None]:
    """Around imports that take seconds: a terminal shows what is waited for."""
    from rich.console import Console

    screen = Console(stderr=True)
    if not screen.is_terminal or not is_main_process():
        yield
        return
    with screen.status("importing torch and transformers"):
        yield


def is_main_process() -> bool:
    """Whether this process prints and writes the report: the only one, or rank 0."""
    return os.environ.get("WORLD_SIZE", "1") == "1" or os.environ.get("RANK", "0") == "0"


def console() -> "Console":
    from rich.console import Console

    return Console() if is_main_process() else Console(file=open(os.devnull, "w"))
