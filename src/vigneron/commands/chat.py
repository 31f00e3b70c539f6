"""`vigneron chat`: completions of a run's model, before and after training.

Of a run with an environment they are conversations, in which the user plays the environment's part or watches it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from vigneron.api import Trained, load_run
from vigneron.commands.chat_input import NEW, ChatInput, Command
from vigneron.data.prompts import Row
from vigneron.errors import UserError
from vigneron.report.tables import conversation_lines
from vigneron.report.terminal import say
from vigneron.run_data.stored import first_rows
from vigneron.run_data.typed_prompt import typed_prompt, typed_template
from vigneron.run_store.folder import RunFolder
from vigneron.run_store.sample_turns import turns_of_sample
from vigneron.run_store.samples import Sample

ROW = "#"
"""Before the number of a row, in place of a first message."""


@dataclass(frozen=True)
class SamplingOptions:
    """How completions are sampled."""

    temperature: float
    max_new_tokens: int | None

    def __call__(self, seed: int) -> dict[str, Any]:
        return {"temperature": self.temperature, "max_new_tokens": self.max_new_tokens, "seed": seed}


def chat_loop(
    console: Console,
    run: Path,
    *,
    step: int | None,
    temperature: float,
    raw: bool,
    environment: bool = False,
    max_new_tokens: int | None = None,
) -> None:
    trained = load_run(run, step=step)
    if trained.config.method.trains == "scorer":
        raise UserError(f"'{run}' trained a reward model, which cannot generate text")
    if environment and trained.config.environment is None:
        raise UserError(f"--environment: '{run}' was trained without one")
    template = None if raw else typed_template(trained.config)
    say(
        console,
        f"{trained.config.model.name}, before and after {trained.step} steps of {trained.config.recipe}",
    )
    if template:
        say(console, f"prompt template: {template!r} (--raw turns it off)")
    length = max_new_tokens or trained.config.max_new_tokens
    say(console, f"an answer is at most {length} tokens long (--max-new-tokens changes it)")
    options = SamplingOptions(temperature, max_new_tokens)
    if environment:
        _watch(console, trained, template, options)
    elif trained.config.environment is not None:
        _play(console, trained, template, options)
    else:
        _complete(console, trained, template, options, raw=raw)


def _complete(console: Console, trained: Trained, template: str | None, options: SamplingOptions, *, raw: bool) -> None:
    """Each message is a prompt."""
    conversational = False
    if not raw:
        (row,) = first_rows(RunFolder(trained.folder).data(trained.config), ("train", "held_out"), 1)
        conversational = not isinstance(row["prompt"], str)
    typing, turn = ChatInput(console, "type a prompt: the model answers each by itself"), 0
    while (typed := typing.read()) is not None:
        prompt = [typed_prompt(typed, template, conversational=conversational)]
        say(console, f"before  {trained.sample_before(prompt, **options(turn))[0]!r}")
        say(console, f"after   {trained.sample(prompt, **options(turn))[0]!r}")
        turn += 1


def _play(console: Console, trained: Trained, template: str | None, options: SamplingOptions) -> None:
    """Each message goes on with a conversation of either model."""
    say(console, "you play the environment's part (--environment lets it play)")
    samplers: dict[str, Callable[..., list[str]]] = {"before": trained.sample_before, "after": trained.sample}
    typing = ChatInput(console, "type the first message of a conversation", {NEW: "begin a new conversation"})
    talks: dict[str, list[Any]] = {}
    turn = 0
    while (typed := typing.read()) is not None:
        if isinstance(typed, Command):
            talks = {}
            say(console, "--- the conversation is over: type the first message of a new one ---")
            continue
        for name, sample in samplers.items():
            begun = talks.get(name)
            message = [{"role": "user", "content": typed}]
            talks[name] = typed_prompt(typed, template, conversational=True) if begun is None else [*begun, *message]
            (answer,) = sample([talks[name]], **options(turn))
            talks[name].append({"role": "assistant", "content": answer})
            say(console, f"{name:<7} {answer!r}")
        turn += 1


def _watch(console: Console, trained: Trained, template: str | None, options: SamplingOptions) -> None:
    """Each message is the first of a conversation between the model and the environment, or names a row."""
    data = RunFolder(trained.folder).data(trained.config)
    rows: Sequence[Row] = data.held_out or data.train
    of = "held-out" if data.held_out else "training"
    typing = ChatInput(console, f"type a first message, or {ROW}1 to {ROW}{len(rows)} for a {of} row")
    turn = 0
    while (typed := typing.read()) is not None:
        row = (
            _row(console, typed, rows)
            if typed.startswith(ROW)
            else {"prompt": typed_prompt(typed, template, conversational=True)}
        )
        if row is None:
            continue
        for name in ("before", "after"):
            say(console, f"--- {name} training ---")
            try:
                samples = trained.converse([row], before=name == "before", **options(turn))
            except UserError as error:  # the environment failed: a typed message lacks the columns of a row
                say(console, f"error: {error}")
                continue
            for sample in samples:
                role = [f"as {sample.extras['role']}:"] if "role" in sample.extras else []
                shown = [sample.prompt] if role or typed.startswith(ROW) else []
                say(console, "\n".join([*role, *shown, *conversation_lines(sample), _ending(sample)]))
        turn += 1


def _ending(sample: Sample) -> str:
    """That the conversation is over, and who ended it."""
    talk = turns_of_sample(sample)
    if talk is None:
        return "--- over ---"
    turns = sum(turn.model for turn in talk.turns)
    who = "the environment failed" if talk.error else "cut off" if talk.ended else "the environment ended it"
    rewards = [turn.reward for turn in talk.turns if turn.reward is not None]
    reward = f", reward {sum(rewards):.4g}" if rewards and not talk.error else ""
    return f"--- over after {turns} turn{'s' * (turns != 1)}{reward}: {who} ---"


def _row(console: Console, typed: str, rows: Sequence[Row]) -> Row | None:
    number = typed.removeprefix(ROW)
    if number.isascii() and number.isdigit() and 1 <= int(number[:9]) <= len(rows):
        return rows[int(number[:9]) - 1]
    say(console, f"there is no row '{number}': {ROW}1 to {ROW}{len(rows)}")
    return None
