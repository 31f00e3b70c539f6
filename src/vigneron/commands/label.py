"""`vigneron label`: what is asked for, put together, and served until Ctrl-C."""

import getpass
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from vigneron.errors import UserError
from vigneron.labels.export import OutFile
from vigneron.labels.items import Kind
from vigneron.labels.journal import Journal, Labels, journal_of, read_entries
from vigneron.labels.session import Session

SUFFIXES: dict[Kind, tuple[str, ...]] = {"pairs": (".jsonl",), "best": (".jsonl",), "scores": (".csv", ".jsonl")}


@dataclass(frozen=True)
class Asked:
    """The command line's words. `sample` names a run or a model, instead of a `source`."""

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
    limit: int = 200
    seed: int = 0

    @property
    def kind(self) -> Kind:
        return "scores" if self.scores else "best" if self.best else "pairs"

    @property
    def file(self) -> Path:
        """Scores belong to a run, and lie in its folder unless said otherwise."""
        if self.out is not None:
            return self.out.expanduser()
        return Path(f"{self.kind}.jsonl") if not self.scores or self.source is None else self.source / "people.csv"

    def check(self) -> None:
        if self.best and self.scores:
            raise UserError("--best and --scores ask for different things: give one")
        if self.file.suffix not in SUFFIXES[self.kind]:
            raise UserError(f"'{self.file}' should end in {' or '.join(SUFFIXES[self.kind])}")
        if self.labeller is not None and (not self.labeller.strip() or not self.labeller.isprintable()):
            raise UserError(f"--as: {self.labeller!r} is no name")
        if self.sample is None:
            self._check_source()
        elif self.source is not None or self.scores or self.step is not None:
            raise UserError("--sample makes the completions itself: leave out the source, --scores and --step")
        elif self.prompts is None:
            raise UserError("--sample needs --prompts, a file with a column `prompt` (.jsonl, .csv)")
        elif self.group is not None and not self.best:
            raise UserError("--group is for --best: pairs have two completions")

    def _check_source(self) -> None:
        if self.source is None:
            raise UserError("nothing to label: name a run's folder or a file (.jsonl, .csv), or use --sample")
        for_sampling = ("prompts", "group", "temperature", "max_new_tokens")
        for name in for_sampling:
            if getattr(self, name) is not None:
                raise UserError(f"--{name.replace('_', '-')} is for --sample")
        if not self.source.is_dir() and (self.scores or self.step is not None):
            raise UserError(
                f"'{self.source}' is not a run's folder, which --{'scores' if self.scores else 'step'} needs"
            )


def agreement_line(asked: Asked) -> str:
    """Of all who labelled into a file. Nothing is locked or written."""
    from vigneron.labels.agreement import agreement

    if asked.scores:
        raise UserError("--agreement is for choices; of scores: `vigneron rubric review RUN --labels FILE`")
    path = journal_of(asked.file)
    if not path.is_file():
        raise UserError(f"nobody labelled into '{asked.file}' yet: there is no '{path}'")
    return agreement(Labels(read_entries(path, asked.kind))).line()


def open_session(asked: Asked, tell: Callable[[str], None]) -> Session:
    """Everything that can be wrong is found here, before a page is served."""
    asked.check()
    items: list[Any] = []
    notices: list[str] = []
    prompts: list[Any] = []
    if asked.sample is not None:
        from vigneron.labels.live_sampling import prompts_of

        assert asked.prompts is not None
        prompts = prompts_of(asked.prompts)
    else:
        items, notices = _from_source(asked)
    session = Session(
        Journal(asked.file, asked.kind), OutFile(asked.file), asked.labeller or _account(), asked.seed, asked.limit
    )
    for notice in notices:
        tell(f"note: {notice}")
    session.offer(items)
    if asked.sample is not None:
        _sample(asked, session, prompts)
    return session


def _from_source(asked: Asked) -> tuple[list[Any], list[str]]:
    assert asked.source is not None
    if asked.scores:
        from vigneron.labels.from_judge import judgements_of_run

        return list(judgements_of_run(asked.source, step=asked.step, seed=asked.seed)), []
    kind: Literal["pairs", "best"] = "best" if asked.best else "pairs"
    if asked.source.expanduser().is_dir():
        from vigneron.labels.from_run import comparisons_of_run

        found = comparisons_of_run(asked.source, kind=kind, step=asked.step, seed=asked.seed)
    else:
        from vigneron.labels.from_file import comparisons_of_file

        found = comparisons_of_file(asked.source, kind=kind, seed=asked.seed)
    return list(found.items), found.notices


def _sample(asked: Asked, session: Session, prompts: list[Any]) -> None:
    from vigneron.labels.live_sampling import load_sampler, sample_for

    assert asked.sample is not None
    temperature = 1.0 if asked.temperature is None else asked.temperature
    load = partial(load_sampler, asked.sample, temperature=temperature, max_new_tokens=asked.max_new_tokens)
    sample_for(
        session,
        load,
        prompts,
        kind="best" if asked.best else "pairs",
        count=(asked.group or 4) if asked.best else 2,
    )


def then(asked: Asked) -> str:
    """What to do with the file."""
    if asked.kind == "scores":
        return f"vigneron rubric review {asked.source} --labels {asked.file}"
    name = "sft" if asked.best else "dpo"
    return f"method: {{name: {name}}}\ndata: {{train: {asked.file}}}"


def label(asked: Asked, *, port: int, host: str, tell: Callable[[str], None]) -> None:
    session = open_session(asked, tell)
    from vigneron.web.label import label_app
    from vigneron.web.serve import serve

    serve(
        label_app(session, asked.kind, then(asked)),
        port=port,
        host=host,
        tell=lambda address: tell(f"open  {address}\nstop  Ctrl-C"),
    )
    state = session.state()
    tell(f"{state['done']} of {state['of']} judged, {state['rows']} rows in {asked.file}")


def _account() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # an account without a name
        return "me"
