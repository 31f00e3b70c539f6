"""A row of a file as a run's method reads it. Every reader raises for a row that it cannot use, and names its place."""

from typing import Any

from vigneron.config import Config, MethodOptions, SemanticRewardConfig
from vigneron.data.dataset import ColumnReader, check_row
from vigneron.data.first_pass import Reader
from vigneron.data.foreign_messages import with_messages
from vigneron.data.formats import with_prompt_and_answer, without_demonstrations
from vigneron.data.pairs import PairReader
from vigneron.data.prompts import Row, as_messages, completion_text, filled
from vigneron.data.recorded import RecordedReader, score_of, without_record
from vigneron.data.steps import LISTS, StepLabelReader, with_step_text
from vigneron.data.tasks import load_task
from vigneron.errors import UserError, nearest
from vigneron.text import CLEANERS


def reader_of(config: Config, part: str, *, stored: bool = False) -> Reader:
    """For the rows of a file, of the part `train` or `held_out`. `stored`: of a run that has started with them; an
    answer that the reward cannot compare with, as an earlier version could, then gives no reward and no error."""
    return _Templated(config.data.template, _method_reader(config, part, stored=stored))


def saved_reader(config: Config, part: str) -> Reader:
    """For rows of a run's folder, which another reader has written: they are checked, and not changed."""
    reads, score, steps = config.method.reads, config.method.score_column, config.method.step_labels
    if reads == "pairs" or (reads == "recorded" and part == "train"):
        return _Unchanged([_method_reader(config, part)])
    columns = ["prompt", *(["answer"] if reads == "demonstrations" else [])]
    checks: list[Reader] = [ColumnReader(columns)]
    if score is not None and reads != "recorded":
        checks.append(ScoreReader(config.method))
    if steps is not None:
        checks.append(StepLabelReader(steps, separated=True))
    return _Unchanged(checks)


def measured_columns(config: Config, part: str) -> tuple[str, ...]:
    """The columns of the texts that are tokenized."""
    if config.method.reads == "pairs":
        return ("prompt", "chosen", "rejected")
    if config.method.reads == "recorded" and part == "train":
        return ("prompt", "completion")
    trained = config.method.reads == "demonstrations" or config.method.shows_answers
    return ("prompt", "answer") if trained and part == "train" else ("prompt",)


def checker_name(config: Config) -> str:
    """The name of the run's answer checker."""
    data = config.data
    return data.checker or ("equality" if data.task is None else load_task(data.task).checker)


COMPARED = ("semantic", "token_f1", "probability", "binary")
"""Rewards that compare with an answer."""


NOTHING_LEFT = {"words": "is empty", "letters": "has no letters", "a_to_z": "has no letter from a to z"}
"""What is wrong with an answer of which a cleaner leaves nothing."""


def why_not_compared(config: Config, answer: Any) -> str | None:
    """Why the reward cannot compare with an answer, and what to do: `reward.clean` leaves nothing of it, or the checker
    finds no number. None if it can."""
    if checker_name(config) == "final_number" and any(part.kind == "binary" for part in config.reward.parts):
        from vigneron.rewards.final_number import why_no_number

        if (why := why_no_number(answer)) is not None:
            return f"{why}: correct it, or choose another `data.checker`"
    for part in config.reward.parts:
        if not isinstance(part, SemanticRewardConfig) or part.clean == "none":
            continue
        if not CLEANERS[part.clean](completion_text(answer)):
            return f"{NOTHING_LEFT[part.clean]}: set `reward.clean: none`"
    return None


def _method_reader(config: Config, part: str, *, stored: bool = False) -> Reader:
    if config.method.reads == "pairs":
        return PairReader(spaced=config.data.space_pairs)
    if config.method.reads == "recorded" and part == "train":
        assert config.method.score_column is not None
        return RecordedReader(config.method.score_column, config.method.score_range)
    return PromptReader(config, stored=stored)


class PromptReader:
    """Rows with a prompt, and an answer where the method or the reward needs one."""

    def __init__(self, config: Config, *, stored: bool = False) -> None:
        self.stored, method = stored, config.method
        self.demonstrations = method.reads == "demonstrations"
        compares = any(part.kind in COMPARED for part in config.reward.parts) and not config.answers_are_optional
        self.answered = config.parent is None and (compares or self.demonstrations)
        self.one_answer = self.answered and not self.demonstrations
        """Whether the same prompt with two answers is an error."""
        self.config, self.parent = config, config.parent is not None
        self.record = method.score_column if method.reads == "recorded" else None
        self.steps = method.step_labels
        self.labels = None if self.steps is None else StepLabelReader(self.steps)
        scored = method.score_column is not None and method.reads != "recorded"
        self.score = ScoreReader(method) if scored else None
        self.labelled = method if self.demonstrations and (scored or self.steps is not None) else None
        has_input = checker_name(config) == "sentiment_inversion"
        self.needed = ["prompt", *(["answer"] if self.answered else []), *(["input"] if has_input else [])]

    def __call__(self, row: Row, place: object) -> Row | None:
        if self.steps is not None and self.labels is not None:
            if any(isinstance(row.get(name), list) for name in LISTS):
                self.labels.separated = True  # the steps are given, so no separator is needed
            row = with_step_text(row, place, self.steps)
        if self.record is not None:
            row = without_record(row, self.record)
        if self.labelled is not None:
            row = _with_reference(row)
            if not self.parent:
                _check_labelled(self.labelled, row, place)
        row = with_prompt_and_answer(row, place)
        if self.parent and ("messages" in row or "completion" in row):
            row = without_demonstrations(row)
        check_row(row, self.needed, place)
        if self.config.data.chat:
            row = {**row, "prompt": as_messages(row["prompt"])}
        if self.score is not None:
            row = self.score(row, place)
        if self.answered:
            if not self.stored and (why := why_not_compared(self.config, row["answer"])) is not None:
                raise UserError(f"data: {place}: the answer {why}")
            answer = row["answer"]
            if self.demonstrations and not (answer if type(answer) is str else completion_text(answer)).strip():
                raise UserError(f"data: {place}: the answer is empty: remove the row or fill it in")
        return row if self.labels is None else self.labels(row, place)

    def add(self, later: "PromptReader") -> None:
        if self.labels is not None and later.labels is not None:
            self.labels.add(later.labels)

    def finish(self, where: str) -> list[str]:
        return [] if self.labels is None else self.labels.finish(where)


class ScoreReader:
    """Rows with their scores as floats, each from 0 to 1."""

    def __init__(self, method: MethodOptions) -> None:
        assert method.score_column is not None
        self.method, self.column = method, method.score_column

    def __call__(self, row: Row, place: object) -> Row:
        check_row(row, [self.column], place)
        score = score_of(row, self.column, (0.0, 1.0), place)
        if self.method.scores_above_zero and not score:
            raise UserError(
                f"data: {place}: {self.column} is 0, and `method: {self.method.name}` samples in proportion to it: "
                "leave out the row"
            )
        return {**row, self.column: score}

    def add(self, later: Any) -> None: ...

    def finish(self, where: str) -> list[str]:
        return []


def _with_reference(row: Row) -> Row:
    """A sample with a score may have the prompt's reference as `answer`, as `vigneron sample` writes it: it is kept as
    `reference`, and the text that is trained on is the `completion`."""
    completion, answer = row.get("completion"), row.get("answer")
    if completion is None or answer is None or completion_text(answer) == completion_text(completion):
        return row
    return {"reference": answer, **{name: value for name, value in row.items() if name != "answer"}}


def _check_labelled(method: MethodOptions, row: Row, place: object) -> None:
    """Raise for a row without a text."""
    if any(row.get(name) not in (None, "", []) for name in ("completion", "answer", "messages")):
        return
    column = method.score_column or (method.step_labels and method.step_labels.column)
    is_pair = row.get("chosen") is not None and row.get("rejected") is not None
    pair = "; this row is a pair: use `method: dpo`, or write its texts as two rows" if is_pair else ""
    raise UserError(
        f"data: {place} has no 'completion': `method: {method.name}` reads `prompt`, `completion` and `{column}`{pair}"
    )


class _Templated:
    """With the prompt of the config's template."""

    def __init__(self, template: str | None, reader: Reader) -> None:
        self.template, self.reader = template, reader
        self.one_answer = isinstance(reader, PromptReader) and reader.one_answer

    def __call__(self, row: Row, place: object) -> Row | None:
        if self.template is not None:
            try:
                row = {**row, "prompt": filled(self.template, row)}
            except KeyError as error:
                column = str(error.args[0])
                near = nearest(column, row)
                meant = f" (did you mean '{near}'?)" if near is not None else ""
                listed = ", ".join(repr(name) for name in row)
                raise UserError(f"data.template: {place} has no column '{column}'{meant}: it has {listed}") from error
            except (IndexError, ValueError, AttributeError, TypeError, MemoryError, OverflowError) as error:
                raise UserError(f"data: {place} does not fit the template: {error!r}") from error
        return self.reader(with_messages(row, place), place)

    def add(self, later: "_Templated") -> None:
        self.reader.add(later.reader)

    def finish(self, where: str) -> list[str]:
        return self.reader.finish(where)


class _Unchanged:
    def __init__(self, checks: list[Reader]) -> None:
        self.checks = checks

    def __call__(self, row: Row, place: object) -> Row:
        for check in self.checks:
            check(row, place)
        return row

    def add(self, later: "_Unchanged") -> None:
        for check, other in zip(self.checks, later.checks, strict=True):
            check.add(other)

    def finish(self, where: str) -> list[str]:
        for check in self.checks:
            check.finish(where)
        return []
