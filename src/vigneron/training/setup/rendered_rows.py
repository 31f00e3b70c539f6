"""What the model gets for a recipe's rows, as its chat template writes them: checked before a run, and shown."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from vigneron.config import Config, GameConfig
from vigneron.data.formats import answered, conversation_of, is_continued
from vigneron.data.prompts import NumberedRow, Row, completion_text, continuation, in_row, numbered, prompt_of
from vigneron.data.rows import longest_of
from vigneron.environments.build import Environments
from vigneron.policy.chat import Conversation, mint, set_template_defaults
from vigneron.policy.chat_template import check_date, set_date
from vigneron.rollout.trained_text_notes import template_notes
from vigneron.run_data.load import Data
from vigneron.run_data.readers import measured_columns

LONGEST = 2000
"""Characters of a row that are shown, from the end of the text."""
FIRST = 500
"""The first rows of a part that are checked, beside the longest, which are checked at the start of a run."""
SHOWN = 2
"""Rows that are shown."""
NOTED_ROWS = 100
"""The first rows, whose text is compared with their messages."""
PARTS = {"train": "the training data", "held_out": "the held-out part"}


def has_conversations(data: Data) -> bool:
    return any(not isinstance(row["prompt"], str) for rows in (data.train, data.held_out) for row in _first(rows))


def prepare_template(config: Config, tokenizer: Any) -> None:
    """Let the tokenizer write conversations as it will in the run."""
    model = config.model
    if model.chat == "minted":
        mint(tokenizer)
    check_date(tokenizer, model.chat_date)
    set_template_defaults(tokenizer, model.chat_template_kwargs)
    set_date(model.chat_date)


def check_template(config: Config, data: Data, tokenizer: Any, environments: Environments | None = None) -> None:
    """Raise for rows of both parts that the model's chat template cannot write."""
    for part in PARTS:
        for row in _checked(config, getattr(data, part), part, talks=environments is not None):
            _of_row(config, tokenizer, row, part, environments)


def shown_rows(config: Config, data: Data, tokenizer: Any, environments: Environments | None = None) -> Iterator[str]:
    """The first rows as text, with what is trained or sampled between » and «; before the first turn with an
    environment. Conversations need the tokenizer, prepared by `prepare_template`."""
    rows = [row for row in _first(data.train)[:SHOWN] if isinstance(row["prompt"], str) or tokenizer is not None]
    if isinstance(config.environment, GameConfig) and config.method.reads == "prompts":
        rows = []  # the game writes what is read
    if rows:
        yield "the first rows as the model gets them, with what is trained or sampled between » and «:"
    for number, row in enumerate(rows, start=1):
        text = _of_row(config, tokenizer, row, "train", environments)
        cut = f"…{text[-LONGEST:]}" if len(text) > LONGEST else text
        yield f"  row {number}: {cut!r}"
    if tokenizer is not None:
        yield from (f"note: {note}" for note in template_notices(config, data, tokenizer))


def template_notices(config: Config, data: Data, tokenizer: Any) -> Iterator[str]:
    """About the first of the rows that the chat template does not write as one would expect."""
    for number, row in enumerate(islice(data.train, NOTED_ROWS), start=1):
        if isinstance(row["prompt"], str):
            continue
        place = numbered(row, number, "the training data")
        notes = in_row(*place, template_notes, tokenizer, row, config.method.reads)
        if notes:
            yield f"row {place[0]} of {place[1]}: {'; '.join(notes)}"
            return


def _first(rows: Sequence[Row]) -> list[Row]:
    return [rows[index] for index in range(min(FIRST, len(rows)))]


def _checked(config: Config, rows: Sequence[Row], part: str, *, talks: bool) -> Iterator[Row]:
    """Conversations: of up to 2000 rows all. With `talks` a text begins one."""
    indices: Any = longest_of(rows, measured_columns(config, part)) if rows else []
    for index in sorted({*range(min(FIRST, len(rows))), *map(int, indices)}):
        row = rows[index]
        if talks or not isinstance(row["prompt"], str):
            yield row if isinstance(row, NumberedRow) else NumberedRow(row, index + 1)


def _of_row(config: Config, tokenizer: Any, row: Row, part: str, environments: Environments | None) -> str:
    place = numbered(row, 0, PARTS[part])
    reads = config.method.reads
    if part == "held_out" and reads == "demonstrations":  # only its prompt is used
        reads = "prompts"
    if environments is not None and reads == "prompts":
        row = environments.prepared(row)
    sides = ("rejected", "chosen") if reads == "pairs" else ("answer",)
    for side in sides:
        given = answered(prompt_of(row), row[side]) if reads == "pairs" else row
        text = in_row(*place, _shown, reads, tokenizer, given)
    return text


def _shown(reads: str, tokenizer: Any, row: Row) -> str:
    if isinstance(row["prompt"], str):
        return f"{row['prompt']}»{_plain_answer(reads, row)}«"
    if reads in ("prompts", "recorded"):
        talk = Conversation.of(tokenizer, row["prompt"], row.get("tools"))
        return f"{tokenizer.decode(talk.ids(talk.before(len(row['prompt']))))}»…«"
    messages, first = conversation_of(row)
    talk = Conversation.of(tokenizer, messages, row.get("tools"))
    turns = [turn for turn in range(first, len(messages)) if messages[turn]["role"] == "assistant"]
    answers = None if is_continued(messages, first) else talk.assistant_spans(turns)
    if answers is None:
        last = len(messages) - 1
        return f"{tokenizer.decode(talk.ids(talk.before(last)))}»{talk.text(last)}«"
    pieces, at = [], 0
    for start, stop in answers.spans:
        pieces += [answers.text[at:start], "»", answers.text[start:stop], "«"]
        at = stop
    return "".join(piece if piece in ("»", "«") else tokenizer.decode(talk.ids(piece)) for piece in pieces)


def _plain_answer(reads: str, row: Row) -> str:
    written = row.get("completion")
    if reads == "prompts" or (written is None and row.get("answer") is None):
        return "…"
    return (
        completion_text(written) if written is not None else continuation(row["prompt"], completion_text(row["answer"]))
    )
