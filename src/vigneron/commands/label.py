"""`vigneron label`: collect the items to label and serve the labelling page until Ctrl-C."""

import getpass
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from vigneron.data.prompts import Row
from vigneron.errors import UserError
from vigneron.labels.export import OutFile
from vigneron.labels.items import Kind
from vigneron.labels.journal import Journal, Labels, journal_of, read_entries
from vigneron.labels.session import Session
from vigneron.labels.training_recipe import recipe_file, recipe_text, training_command
from vigneron.run_store.folder import RunFolder

DEFAULT_LIMIT = 200
SUFFIXES: dict[Kind, tuple[str, ...]] = {
    "pairs": (".jsonl",),
    "best": (".jsonl",),
    "scores": (".csv", ".jsonl"),
    "steps": (".jsonl",),
}


@dataclass(frozen=True)
class LabelOptions:
    """The command's options. `sample` names a run or a model to sample from, instead of a `source`. `judge` labels in
    place of a person."""

    source: Path | None
    out: Path | None = None
    labeller: str | None = None
    best: bool = False
    scores: bool = False
    sample: str | None = None
    prompts: Path | None = None
    group: int | None = None
    temperature: float | None = None
    max_new_tokens: int | None = None
    step: int | None = None
    limit: int | None = None
    seed: int = 0
    judge: str | None = None
    principles: str | None = None
    principle: str | None = None
    people: Path | None = None
    checker: str | None = None
    solutions: bool = False
    by: str | None = None
    separator: str | None = None

    @property
    def kind(self) -> Kind:
        return "steps" if self.solutions else "scores" if self.scores else "best" if self.best else "pairs"

    @property
    def file(self) -> Path:
        """The output file. Scores go to the run's folder by default."""
        if self.out is not None:
            return self.out.expanduser()
        return Path(f"{self.kind}.jsonl") if not self.scores or self.source is None else self.source / "people.csv"

    def check(self) -> None:
        for name in ("principles", "principle", "people", "checker"):
            if self.judge is None and getattr(self, name) is not None:
                raise UserError(f"--{name} needs --judge")
        if self.judge is not None and (self.best or self.scores or self.solutions or self.labeller is not None):
            raise UserError("--judge labels pairs: leave out --best, --scores, --solutions and --as")
        if self.principle is not None and self.principles is None:
            raise UserError("--principle needs --principles: the file that has it")
        kinds = [f"--{name}" for name in ("best", "scores", "solutions") if getattr(self, name)]
        if len(kinds) > 1:
            raise UserError(f"{' and '.join(kinds)} exclude each other: give one")
        for name in ("by", "separator"):
            if getattr(self, name) is not None and not self.solutions:
                raise UserError(f"--{name} needs --solutions")
        if self.solutions and self.sample is not None:
            raise UserError(
                "--solutions labels given solutions: leave out --sample, or name a run or a file of solutions"
            )
        if self.file.suffix not in SUFFIXES[self.kind]:
            raise UserError(f"'{self.file}' should end in {' or '.join(SUFFIXES[self.kind])}")
        if self.labeller is not None and (not self.labeller.strip() or not self.labeller.isprintable()):
            raise UserError(f"--as: {self.labeller!r} is not a name: it is empty or has control characters")
        if self.sample is None:
            self._check_source()
        elif self.source is not None or self.scores or self.step is not None:
            raise UserError("--sample samples new completions: leave out the source, --scores and --step")
        elif self.prompts is None:
            raise UserError("--sample needs --prompts: a file with a column `prompt` (.jsonl, .csv)")
        elif self.group is not None and not self.best and self.judge is None:
            raise UserError("--group needs --best or --judge: pairs have two completions")

    def _check_source(self) -> None:
        if self.source is None:
            raise UserError("nothing to label: name the folder of a run or a file (.jsonl, .csv), or use --sample")
        for_sampling = ("prompts", "group", "temperature", "max_new_tokens")
        for name in for_sampling:
            if getattr(self, name) is not None:
                raise UserError(f"--{name.replace('_', '-')} needs --sample")
        if not self.source.suffix and not self.source.expanduser().exists():
            RunFolder.open(self.source)  # a name without a file's ending is meant as a run's: says which ones there are
        if not self.source.is_dir() and (self.scores or self.step is not None):
            raise UserError(
                f"--{'scores' if self.scores else 'step'} needs the folder of a run, and '{self.source}' is none"
            )


def agreement_line(options: LabelOptions) -> str:
    """Agreement between all labellers of a file. Locks and writes nothing."""
    from vigneron.labels.agreement import agreement, reward_agreement

    if options.scores:
        raise UserError("--agreement is for choices; for scores use `vigneron rubric review RUN --labels FILE`")
    path = journal_of(options.file)
    if not path.is_file():
        raise UserError(f"no labels for '{options.file}' yet: '{path}' does not exist")
    labels = Labels(read_entries(path, options.kind))
    with_reward = [line for by in labels.labellers() if (line := reward_agreement(labels, by)) is not None]
    return "\n".join([agreement(labels).line(), *with_reward])


def open_session(options: LabelOptions, tell: Callable[[str], None]) -> Session:
    """All checks run here, before the page is served."""
    options.check()
    items: list[Any] = []
    notices: list[str] = []
    rows: list[Row] = []
    if options.sample is not None:
        from vigneron.labels.live_sampling import rows_of

        assert options.prompts is not None
        rows = rows_of(options.prompts)
    else:
        items, notices = from_source(options)
    session = Session(
        Journal(options.file, options.kind),
        OutFile(options.file),
        options.labeller or _account(),
        options.seed,
        DEFAULT_LIMIT if options.limit is None else options.limit,
    )
    for notice in notices:
        tell(f"note: {notice}")
    session.offer(items)
    if options.sample is not None:
        _sample(options, session, rows)
    return session


def from_source(options: LabelOptions) -> tuple[list[Any], list[str]]:
    assert options.source is not None
    if options.solutions:
        from vigneron.labels.from_solutions import solutions_of

        separator = options.separator or "\n"
        solutions, notices = solutions_of(
            options.source, separator=separator, by=options.by, step=options.step, seed=options.seed
        )
        return list(solutions), notices
    if options.scores:
        from vigneron.labels.from_judge import judged_answers_of_run

        return list(judged_answers_of_run(options.source, step=options.step, seed=options.seed)), []
    kind: Literal["pairs", "best"] = "best" if options.best else "pairs"
    if options.source.expanduser().is_dir():
        from vigneron.labels.from_run import comparisons_of_run

        collected = comparisons_of_run(options.source, kind=kind, step=options.step, seed=options.seed)
    else:
        from vigneron.labels.from_file import comparisons_of_file

        collected = comparisons_of_file(options.source, kind=kind, seed=options.seed)
    return list(collected.items), collected.notices


def _sample(options: LabelOptions, session: Session, rows: list[Row]) -> None:
    from vigneron.labels.live_sampling import load_sampler, sample_for

    assert options.sample is not None
    temperature = 1.0 if options.temperature is None else options.temperature
    load = partial(load_sampler, options.sample, temperature=temperature, max_new_tokens=options.max_new_tokens)
    sample_for(
        session,
        load,
        rows,
        kind="best" if options.best else "pairs",
        count=(options.group or 4) if options.best else 2,
    )


def next_step(options: LabelOptions, rows: int) -> str:
    """The command that uses the written rows. Writes the recipe that it names, unless the file exists."""
    if options.kind == "scores":
        return shlex.join(["vigneron", "rubric", "review", str(options.source), "--labels", str(options.file)])
    of_run = options.source is not None and options.source.expanduser().is_dir()
    model = str(options.source) if of_run else options.sample
    text = recipe_text(options.file, options.kind, model, options.separator)
    return training_command(recipe_file(options.file, options.kind), text, rows)


def label(options: LabelOptions, *, port: int, host: str, tell: Callable[[str], None]) -> None:
    session = open_session(options, tell)
    from vigneron.labels.agreement import reward_agreement
    from vigneron.web.label import label_app
    from vigneron.web.serve import serve

    serve(
        label_app(session, options.kind, partial(next_step, options)),
        port=port,
        host=host,
        tell=lambda address: tell(f"open  {address}\nstop  Ctrl-C"),
    )
    state = session.state()
    tell(f"{state['done']} of {state['of']} labelled, {state['rows']} rows in {options.file}")
    for line in (state["agreement"], reward_agreement(session.journal.labels, session.labeller)):
        if line is not None:
            tell(line)
    if state["rows"]:
        tell(f"next  {next_step(options, state['rows'])}")


def _account() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # the account has no name
        return "me"
