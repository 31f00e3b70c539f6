"""`vigneron chat`: completions of a run's model, before and after training."""

import string
from pathlib import Path
from typing import Any

from rich.console import Console

from vigneron.api import load_run
from vigneron.config import Config
from vigneron.data.tasks import load_task
from vigneron.errors import UserError
from vigneron.report.terminal import say
from vigneron.run_data.stored import first_rows
from vigneron.run_store.folder import RunFolder


def chat_loop(console: Console, run: Path, *, step: int | None, temperature: float, raw: bool) -> None:
    trained = load_run(run, step=step)
    if trained.config.method.trains == "scorer":
        raise UserError(f"'{run}' trained a reward model, which cannot generate text")
    template = None if raw else _template(trained.config)
    conversational = False
    if not raw and template is None:
        (row,) = first_rows(RunFolder(trained.folder).data(trained.config), ("train", "held_out"), 1)
        conversational = not isinstance(row["prompt"], str)
    say(
        console,
        f"{trained.config.model.name}, before and after {trained.step} steps of {trained.config.recipe}",
    )
    if template:
        say(console, f"prompt template: {template!r} (--raw turns it off)")
    say(console, "an empty line exits")
    turn = 0
    while True:
        try:
            typed = console.input("> ", markup=False)
        except EOFError:
            return
        if not typed.strip():
            return
        prompt = [_prompt(typed, template, conversational)]
        say(console, f"before  {trained.sample_before(prompt, temperature=temperature, seed=turn)[0]!r}")
        say(console, f"after   {trained.sample(prompt, temperature=temperature, seed=turn)[0]!r}")
        turn += 1


def _template(config: Config) -> str | None:
    """The prompt template, if it has exactly one placeholder for the typed text."""
    template = config.data.template
    if template is None and config.data.task is not None:
        template = load_task(config.data.task).child_prompt
    if template is None or len(_placeholders(template)) != 1:
        return None
    return template


def _placeholders(template: str) -> list[str]:
    return [name for _, name, _, _ in string.Formatter().parse(template) if name]


def _prompt(typed: str, template: str | None, conversational: bool) -> Any:
    if template is not None:
        return template.format(**{_placeholders(template)[0]: typed})
    return [{"role": "user", "content": typed}] if conversational else typed
