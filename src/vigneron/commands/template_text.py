"""What the model's chat template writes for a recipe's rows: for `vigneron validate`."""

from collections.abc import Iterator, Sequence
from typing import Any

from vigneron.config import Config
from vigneron.data.formats import answered, conversation_of
from vigneron.data.prompts import NumberedRow, Row, in_row, numbered, prompt_of
from vigneron.data.rows import longest_of
from vigneron.policy.chat import Conversation, mint, set_template_defaults
from vigneron.policy.chat_template import check_date, set_date
from vigneron.policy.model_names import local_tokenizer
from vigneron.rollout.trained_text_notes import trained_text_notes
from vigneron.run_data.load import Data
from vigneron.run_data.readers import measured_columns

LONGEST = 2000
"""Characters that are shown, from the end of the text."""


FIRST = 500
"""The first rows of a part that are checked, beside the longest, which are checked at the start of a run."""


def template_lines(config: Config, data: Data) -> Iterator[str]:
    """The first conversation as text, with what is trained or sampled between » and «. Nothing for plain prompts, or if
    the tokenizer is not on this machine. Raises for rows of both parts that the template cannot write."""
    checked = [(part, row) for part in PARTS for row in _checked(config, getattr(data, part), part)]
    if not checked:
        return
    model = config.model
    tokenizer = local_tokenizer(model.name, trust_remote_code=model.trust_remote_code)
    if tokenizer is None:
        yield "note: the tokenizer is not on this machine yet, so the chat template is not checked"
        return
    if model.chat == "minted":
        mint(tokenizer)
    check_date(tokenizer, model.chat_date)
    set_template_defaults(tokenizer, model.chat_template_kwargs)
    set_date(model.chat_date)
    shown = [_of_row(config, tokenizer, row, part) for part, row in checked]
    if checked[0][0] != "train" or isinstance(data.train[0]["prompt"], str):
        return
    text = shown[0]
    cut = f"…{text[-LONGEST:]}" if len(text) > LONGEST else text
    yield f"the first row, as the chat template writes it (»trained or sampled«): {cut!r}"
    if config.method.reads not in ("prompts", "recorded"):
        yield from (f"note: {note}" for note in trained_text_notes(tokenizer, data.train[0]))


PARTS = {"train": "the training data", "held_out": "the held-out part"}


def _checked(config: Config, rows: Sequence[Row], part: str) -> Iterator[Row]:
    """Conversations: of up to 2000 rows all."""
    indices: Any = longest_of(rows, measured_columns(config, part)) if rows else []
    for index in sorted({*range(min(FIRST, len(rows))), *map(int, indices)}):
        row = rows[index]
        if not isinstance(row["prompt"], str):
            yield row if isinstance(row, NumberedRow) else NumberedRow(row, index + 1)


def _of_row(config: Config, tokenizer: Any, row: Row, part: str) -> str:
    place = numbered(row, 0, PARTS[part])
    reads = config.method.reads
    if part == "held_out" and reads == "demonstrations":  # only its prompt is used
        reads = "prompts"
    sides = ("rejected", "chosen") if reads == "pairs" else ("answer",)
    for side in sides:
        given = answered(prompt_of(row), row[side]) if reads == "pairs" else row
        text = in_row(*place, _shown, reads, tokenizer, given)
    return text


def _shown(reads: str, tokenizer: Any, row: Row) -> str:
    if reads in ("prompts", "recorded"):
        talk = Conversation.of(tokenizer, row["prompt"], row.get("tools"))
        return f"{tokenizer.decode(talk.ids(talk.before(len(row['prompt']))))}»…«"
    messages, first = conversation_of(row)
    talk = Conversation.of(tokenizer, messages, row.get("tools"))
    turns = [turn for turn in range(first, len(messages)) if messages[turn]["role"] == "assistant"]
    answers = talk.assistant_spans(turns)
    if answers is None:
        last = len(messages) - 1
        return f"{tokenizer.decode(talk.ids(talk.before(last)))}»{talk.text(last)}«"
    pieces, at = [], 0
    for start, stop in answers.spans:
        pieces += [answers.text[at:start], "»", answers.text[start:stop], "«"]
        at = stop
    return "".join(piece if piece in ("»", "«") else tokenizer.decode(talk.ids(piece)) for piece in pieces)
