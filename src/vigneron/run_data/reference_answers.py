"""The parent's answers to a dataset's prompts."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from vigneron.config import Config
from vigneron.data.prompts import Row, prompt_text
from vigneron.data.tasks import load_task
from vigneron.errors import UserError
from vigneron.policy.bundled import cache_folder
from vigneron.run_data.load import Data, can_be_compared, load_rows
from vigneron.sources.answer_cache import AnswerCache
from vigneron.sources.parents import NOT_SENT, Answers, Conversation, Outcome, Parent, build_parent, conversation
from vigneron.timing import progress

# Rows without an answer that a notice names; it counts all.
NAMED = 3


@dataclass(frozen=True)
class Review:
    """Every row with what the parent said to it, the training part first."""

    data: Data
    answers: Answers

    @property
    def rows(self) -> list[Row]:
        return [*self.data.train, *self.data.held_out]

    def with_answers(self) -> Data:
        """The rows that have an answer, in their own parts."""
        given = [
            None if outcome.answer is None else {**row, "answer": outcome.answer}
            for row, outcome in zip(self.rows, self.answers.outcomes, strict=True)
        ]
        count = len(self.data.train)
        train, held_out = ([row for row in part if row is not None] for part in (given[:count], given[count:]))
        return replace(self.data, train=train, held_out=held_out)


def load_parent(config: Config) -> Parent:
    """The config's parent, with its cache. Loads no model and asks nothing."""
    if config.parent is None:
        raise UserError(
            f"{config.recipe} has no parent, its answers are recorded: "
            "add `parent: {kind: endpoint, model: NAME, url: …}` to ask one"
        )
    reads = "text" if config.data.task is None else load_task(config.data.task).reads
    cache = AnswerCache(cache_folder() / "answers.sqlite")
    return build_parent(config.parent, reads=reads, cache=cache, device=config.model.device)


def questions(config: Config, rows: Sequence[Row]) -> list[Conversation]:
    """The instruction and the input of each row: the config's, else the task's, else none and the prompt."""
    asked = config.parent
    assert asked is not None
    instruction = asked.instruction
    if instruction is None and config.data.task is not None:
        instruction = load_task(config.data.task).parent_instruction
    made = []
    for number, row in enumerate(rows, start=1):
        try:
            shown = asked.input.format(**row) if asked.input is not None else _shown(config, row)
        except (KeyError, IndexError, ValueError, AttributeError, TypeError) as error:
            raise UserError(f"parent.input: row {number} cannot fill {asked.input!r}: {error!r}") from error
        made.append(conversation(instruction, shown))
    return made


def _shown(config: Config, row: Row) -> str | list[dict[str, str]]:
    return row["input"] if config.data.task is not None else row["prompt"]


def ask_parent(config: Config, data: Data, *, progress: Callable[[int, int], None] = lambda done, of: None) -> Review:
    """Ask what is not in the cache; after too many failures no more."""
    assert config.parent is not None
    parent = load_parent(config)
    try:
        asked = questions(config, [*data.train, *data.held_out])
        allowed = int(config.parent.missing_limit * len(asked))
        answers = parent.answer(asked, allowed_missing=allowed, progress=progress)
    finally:
        parent.cache.close()
    compared = [_comparable(config, outcome) for outcome in answers.outcomes]
    return Review(data, replace(answers, outcomes=compared))


def answered(config: Config, data: Data, notice: Callable[[str], None]) -> Data:
    """Rows with the parent's answers, where the config has one; those it has none for are left out, and named."""
    for text in data.notices:
        notice(text)
    if config.parent is None:
        return data
    rows = [*data.train, *data.held_out]
    own = sum(row.get("answer") not in (None, "") for row in rows)
    if own and config.data.task is None:
        notice(f"the parent answers: the column `answer` of {own} rows is not used")
    review = ask_parent(config, data, progress=partial(progress, "ask the parent"))
    check_missing(config, review)
    for text in said_of(review, config.parent.model):
        notice(text)
    return review.with_answers()


def check_missing(config: Config, review: Review) -> None:
    """Nothing is trained on what is left of a parent that mostly failed."""
    assert config.parent is not None
    limit, of = config.parent.missing_limit, len(review.rows)
    if review.answers.missing > limit * of or (review.data.train and not review.with_answers().train):
        missing = [outcome for outcome in review.answers.outcomes if outcome.answer is None]
        failed = [outcome for outcome in missing if outcome is not NOT_SENT]
        rest = f" ({len(missing) - len(failed)} were not asked any more)" if len(missing) > len(failed) else ""
        raise UserError(
            f"parent: {len(failed)} of {of} prompts got no answer{rest}, more than `parent.missing_limit: {limit}` "
            f"allows; the first: {failed[0].why}; the answers that came are kept: mend it and try again"
        )


def said_of(review: Review, model: str) -> list[str]:
    """What was asked, and which rows are left out."""
    answers = review.answers
    tokens_in, tokens_out = answers.tokens
    used = f" ({tokens_in} tokens in, {tokens_out} out)" if tokens_in or tokens_out else ""
    lines = [f"the parent {model}: {answers.sent} prompts asked{used}, {answers.cached} from the cache"]
    lost = [(row, o) for row, o in zip(review.rows, answers.outcomes, strict=True) if o.answer is None]
    if lost:
        named = "; ".join(f"{prompt_text(row['prompt'])[:60]!r} ({o.why})" for row, o in lost[:NAMED])
        more = f"; and {len(lost) - NAMED} more" if len(lost) > NAMED else ""
        lines.append(f"{len(lost)} of {len(review.rows)} prompts got no answer and are left out: {named}{more}")
    return lines


def rows_to_evaluate(config: Config, path: str | Path, notice: Callable[[str], None]) -> list[Row]:
    """A file's rows; their own answers, and the parent's for rows that have none."""
    rows, notices = load_rows(config, path)
    lacking = [row for row in rows if row.get("answer") in (None, "")]
    if not lacking:
        config = config.model_copy(update={"parent": None})
    asked = answered(config, Data([], lacking or rows, tuple(notices)), notice).held_out
    given = {_question(row): row for row in asked}
    return [given.get(_question(row), row) for row in rows if row not in lacking or _question(row) in given]


def _question(row: Row) -> str:
    return json.dumps({name: value for name, value in row.items() if name != "answer"}, sort_keys=True)


def counted(config: Config, data: Data) -> tuple[int, int]:
    """How many answers are in the cache, and how many questions a run would ask. Asks nothing."""
    parent = load_parent(config)
    try:
        asked = questions(config, [*data.train, *data.held_out])
        cached = len(parent.cached(asked))
        to_ask = len(set(asked)) - cached
        if to_ask:
            parent.backend.check()
    finally:
        parent.cache.close()
    return cached, to_ask


def _comparable(config: Config, outcome: Outcome) -> Outcome:
    if outcome.answer is None or can_be_compared(config, outcome.answer):
        return outcome
    why = f"its answer {outcome.answer!r} has no letters (`reward.clean: none` keeps it)"
    return replace(outcome, answer=None, why=why)
