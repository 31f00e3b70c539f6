"""The command line: parses arguments, calls `commands/`, prints. Heavy imports wait until a command needs them."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Annotated

import typer

from vigneron.cli import constitution, pages, process, recipes, results, roleplay, rubric, runs, training
from vigneron.cli.key_options import refuse_key_as_option
from vigneron.errors import UserError

OTHER_NAMES = {"list": "runs", "ls": "runs"}
"""What commands are called elsewhere."""
TAKE_OVERRIDES = ("train", "resume", "demo", "validate", "parent", "sample", "compare")
"""Commands with `key=value` arguments."""

app = typer.Typer(
    add_completion=False,
    invoke_without_command=True,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="RL post-training of language models, guided by a Python function, a reward model, a rubric that a judge "
    "scores, or reference answers.",
)
app.add_typer(rubric.app, name="rubric")
app.add_typer(process.app, name="process")
for subject in (training, recipes, results, pages, constitution, roleplay, runs):
    subject.add_to(app)


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
        if words[:1] and words[0] in OTHER_NAMES:
            raise UserError(f"there is no command '{words[0]}': did you mean `vigneron {OTHER_NAMES[words[0]]}`?")
        if words[:1] and words[0] in TAKE_OVERRIDES:
            command = typer.main.get_command(app).commands[words[0]]  # type: ignore[attr-defined]
            refuse_key_as_option(words[1:], {"--help", *(name for one in command.params for name in one.opts)})
        app(words)
