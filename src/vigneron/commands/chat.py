"""`vigneron chat`: completions of a run's model, before and after training.

Of a run with an environment they are conversations, in which the user plays the environment's part or watches it.
"""

import string
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from vigneron.api import Trained, load_run
from vigneron.config import Config
from vigneron.data.prompts import Row
from vigneron.data.tasks import load_task
from vigneron.errors import UserError
from vigneron.report.tables import conversation_lines
from vigneron.report.terminal import say
from vigneron.run_data.stored import first_rows
from vigneron.run_store.folder import RunFolder

ROW = "#"
"""Before the number of a row, in place of a first message."""


def chat_loop(
    console: Console, run: Path, *, step: int | None, temperature: float, raw: bool, environment: bool = False
) -> None:
    trained = load_run(run, step=step)
    if trained.config.method.trains == "scorer":
        raise UserError(f"'{run}' trained a reward model, which cannot generate text")
    if environment and trained.config.environment is None:
        raise UserError(f"--environment: '{run}' was trained without one")
    template = None if raw else _template(trained.config)
    say(
        console,
        f"{trained.config.model.name}, before and after {trained.step} steps of {trained.config.recipe}",
    )
    if template:
        say(console, f"prompt template: {template!r} (--raw turns it off)")
    if environment:
        _watch(console, trained, template, temperature)
    elif trained.config.environment is not None:
        _play(console, trained, template, temperature)
    else:
        _complete(console, trained, template, temperature, raw=raw)


def _typed(console: Console) -> str:
    """A line; nothing at the end of the input, or if it is blank."""
    try:
        typed = console.input("> ", markup=False)
    except EOFError:
        return ""
    return typed if typed.strip() else ""


def _complete(console: Console, trained: Trained, template: str | None, temperature: float, *, raw: bool) -> None:
    """Each line is a prompt."""
    conversational = False
    if not raw:
        (row,) = first_rows(RunFolder(trained.folder).data(trained.config), ("train", "held_out"), 1)
        conversational = not isinstance(row["prompt"], str)
    say(console, "an empty line exits")
    turn = 0
    while typed := _typed(console):
        prompt = [_prompt(typed, template, conversational)]
        say(console, f"before  {trained.sample_before(prompt, temperature=temperature, seed=turn)[0]!r}")
        say(console, f"after   {trained.sample(prompt, temperature=temperature, seed=turn)[0]!r}")
        turn += 1


def _play(console: Console, trained: Trained, template: str | None, temperature: float) -> None:
    """Each line goes on with a conversation of either model."""
    say(console, "you play the environment's part (--environment lets it play): an empty line ends the conversation, ")
    say(console, "and at its beginning exits")
    samplers: dict[str, Callable[..., list[str]]] = {"before": trained.sample_before, "after": trained.sample}
    turn = 0
    while typed := _typed(console):
        talks: dict[str, list[Any]] = {name: _prompt(typed, template, True) for name in samplers}
        while typed:
            for name, sample in samplers.items():
                (answer,) = sample([talks[name]], temperature=temperature, seed=turn)
                talks[name].append({"role": "assistant", "content": answer})
                say(console, f"{name:<7} {answer!r}")
            turn += 1
            if typed := _typed(console):
                for talk in talks.values():
                    talk.append({"role": "user", "content": typed})


def _watch(console: Console, trained: Trained, template: str | None, temperature: float) -> None:
    """Each line is the first message of a conversation between the model and the environment, or names a row."""
    data = RunFolder(trained.folder).data(trained.config)
    rows: Sequence[Row] = data.held_out or data.train
    of = "held-out" if data.held_out else "training"
    say(console, f"type a first message, or {ROW}1 to {ROW}{len(rows)} for a {of} row; an empty line exits")
    turn = 0
    while typed := _typed(console):
        row = _row(console, typed, rows) if typed.startswith(ROW) else {"prompt": _prompt(typed, template, True)}
        if row is None:
            continue
        for name in ("before", "after"):
            say(console, f"--- {name} training ---")
            try:
                samples = trained.converse([row], temperature=temperature, seed=turn, before=name == "before")
            except UserError as error:  # the environment failed: a typed message lacks the columns of a row
                say(console, f"error: {error}")
                continue
            for sample in samples:
                role = [f"as {sample.extras['role']}:"] if "role" in sample.extras else []
                shown = [sample.prompt] if role or typed.startswith(ROW) else []
                say(console, "\n".join([*role, *shown, *conversation_lines(sample)]))
        turn += 1


def _row(console: Console, typed: str, rows: Sequence[Row]) -> Row | None:
    number = typed.removeprefix(ROW)
    if number.isascii() and number.isdigit() and 1 <= int(number[:9]) <= len(rows):
        return rows[int(number[:9]) - 1]
    say(console, f"there is no row '{number}': {ROW}1 to {ROW}{len(rows)}")
    return None


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
    text = typed if template is None else template.format(**{_placeholders(template)[0]: typed})
    return [{"role": "user", "content": text}] if conversational else text
