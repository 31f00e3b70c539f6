"""The parent's answers to a dataset's prompts."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from vigneron.config import Config
from vigneron.data.prompts import Row, filled, prompt_text
from vigneron.data.tasks import load_task
from vigneron.errors import UserError
from vigneron.policy.bundled import cache_folder
from vigneron.run_data.load import Data, load_rows
from vigneron.run_data.readers import why_not_compared
from vigneron.sources.answer_cache import AnswerCache
from vigneron.sources.parents import NOT_SENT, Answers, Conversation, Outcome, Parent, build_parent, conversation
from vigneron.timing import progress

# Rows without an answer that a notice lists; the others are counted.
LISTED = 3


@dataclass(frozen=True)
class AnsweredRows:
    """Every row with the parent's outcome, the training split first."""

    data: Data
    answers: Answers

    @property
    def rows(self) -> list[Row]:
        return [*self.data.train, *self.data.held_out]

    def with_answers(self) -> Data:
        """The rows that have an answer, by split."""
        given = [
            None if outcome.answer is None else {**row, "answer": outcome.answer}
            for row, outcome in zip(self.rows, self.answers.outcomes, strict=True)
        ]
        count = len(self.data.train)
        train, held_out = ([row for row in part if row is not None] for part in (given[:count], given[count:]))
        return replace(self.data, train=train, held_out=held_out)


def load_parent(config: Config) -> Parent:
    """The config's parent with its cache. Loads no model and sends no request."""
    if config.parent is None:
        raise UserError(
            f"{config.recipe} has no parent, it uses recorded answers: "
            "add `parent: {kind: endpoint, model: NAME, url: …}`"
        )
    reads = "text" if config.data.task is None else load_task(config.data.task).reads
    cache = AnswerCache(cache_folder() / "answers.sqlite")
    return build_parent(config.parent, reads=reads, cache=cache, device=config.model.device)


def questions(config: Config, rows: Sequence[Row]) -> list[Conversation]:
    """The conversation for each row: instruction and input of the config, else of the task, else the prompt."""
    parent = config.parent
    assert parent is not None
    instruction = parent.instruction
    if instruction is None and config.data.task is not None:
        instruction = load_task(config.data.task).parent_instruction
    conversations = []
    for number, row in enumerate(rows, start=1):
        try:
            text = filled(parent.input, row) if parent.input is not None else _default_input(config, row)
        except (KeyError, IndexError, ValueError, AttributeError, TypeError) as error:
            raise UserError(f"parent.input: row {number} does not fit {parent.input!r}: {error!r}") from error
        conversations.append(conversation(instruction, text))
    return conversations


def _default_input(config: Config, row: Row) -> str | list[dict[str, str]]:
    return row["input"] if config.data.task is not None else row["prompt"]


def ask_parent(
    config: Config, data: Data, *, progress: Callable[[int, int], None] = lambda done, of: None
) -> AnsweredRows:
    """Get the parent's answers, from the cache if possible. Stops after too many failures."""
    assert config.parent is not None
    parent = load_parent(config)
    try:
        conversations = questions(config, [*data.train, *data.held_out])
        allowed = int(config.parent.missing_limit * len(conversations))
        answers = parent.answer(conversations, allowed_missing=allowed, progress=progress)
    finally:
        parent.cache.close()
    compared = [_comparable(config, outcome) for outcome in answers.outcomes]
    return AnsweredRows(data, replace(answers, outcomes=compared))


def with_parent_answers(config: Config, data: Data, notice: Callable[[str], None]) -> Data:
    """The rows with the parent's answers, if the config has a parent. Rows without an answer are dropped and listed."""
    for text in data.notices:
        notice(text)
    if config.parent is None:
        return data
    rows = [*data.train, *data.held_out]
    own = sum(row.get("answer") not in (None, "") for row in rows)
    if own and config.data.task is None:
        notice(f"the parent's answers are used: the column `answer` of {own} rows is ignored")
    review = ask_parent(config, data, progress=partial(progress, "ask the parent"))
    check_missing(config, review)
    for text in answer_notices(review, config.parent.model):
        notice(text)
    return review.with_answers()


def check_missing(config: Config, review: AnsweredRows) -> None:
    """Raise if the parent failed for more rows than `parent.missing_limit` allows."""
    assert config.parent is not None
    limit, of = config.parent.missing_limit, len(review.rows)
    if review.answers.missing > limit * of or (review.data.train and not review.with_answers().train):
        missing = [outcome for outcome in review.answers.outcomes if outcome.answer is None]
        failed = [outcome for outcome in missing if outcome is not NOT_SENT]
        rest = f" ({len(missing) - len(failed)} more were not sent)" if len(missing) > len(failed) else ""
        too_many = len(missing) > limit * of
        what = f"more than `parent.missing_limit: {limit}` allows" if too_many else "so no row is left to train on"
        raise UserError(
            f"parent: {len(failed)} of {of} prompts got no answer{rest}, {what}; the first error: {failed[0].why}; "
            "received answers are cached: fix it and run again"
        )


def answer_notices(review: AnsweredRows, model: str) -> list[str]:
    """Notices: requests, tokens and cached answers, and the rows that are dropped."""
    answers = review.answers
    tokens_in, tokens_out = answers.tokens
    used = f" ({tokens_in} tokens in, {tokens_out} out)" if tokens_in or tokens_out else ""
    lines = [f"the parent {model}: {answers.sent} prompts sent{used}, {answers.cached} answers from the cache"]
    missing = [(row, o) for row, o in zip(review.rows, answers.outcomes, strict=True) if o.answer is None]
    if missing:
        listed = "; ".join(f"{prompt_text(row['prompt'])[:60]!r} ({o.why})" for row, o in missing[:LISTED])
        more = f"; and {len(missing) - LISTED} more" if len(missing) > LISTED else ""
        lines.append(f"{len(missing)} of {len(review.rows)} prompts got no answer and are dropped: {listed}{more}")
    return lines


def load_evaluation_rows(config: Config, path: str | Path, notice: Callable[[str], None]) -> list[Row]:
    """The rows of a file, with the parent's answers for rows that have none."""
    rows, notices = load_rows(config, path)
    lacking = [row for row in rows if row.get("answer") in (None, "")]
    if not lacking:
        config = config.model_copy(update={"parent": None})
    answered = with_parent_answers(config, Data([], lacking or rows, tuple(notices)), notice).held_out
    by_key = {_key(row): row for row in answered}
    return [by_key.get(_key(row), row) for row in rows if row not in lacking or _key(row) in by_key]


def _key(row: Row) -> str:
    return json.dumps({name: value for name, value in row.items() if name != "answer"}, sort_keys=True)


def count_cached(config: Config, data: Data) -> tuple[int, int]:
    """The number of answers in the cache, and of requests that a run would send. Sends none."""
    parent = load_parent(config)
    try:
        conversations = questions(config, [*data.train, *data.held_out])
        cached = len(parent.cached(conversations))
        to_ask = len(set(conversations)) - cached
        if to_ask:
            parent.backend.check()
    finally:
        parent.cache.close()
    return cached, to_ask


def _comparable(config: Config, outcome: Outcome) -> Outcome:
    why = None if outcome.answer is None else why_not_compared(config, outcome.answer)
    if why is None:
        return outcome
    return replace(outcome, answer=None, why=f"its answer {outcome.answer!r} {why}")
