"""What the model's chat template writes for a recipe's first row: for `vigneron validate`."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from vigneron.config import Config
from vigneron.data.formats import conversation_of
from vigneron.data.prompts import Row
from vigneron.errors import UserError
from vigneron.policy.chat import Conversation, mint, set_template_defaults
from vigneron.policy.chat_template import check_date, set_date
from vigneron.policy.load import local_tokenizer
from vigneron.rollout.trained_text_notes import trained_text_notes

LONGEST = 2000
"""Characters that are shown, from the end of the text."""


def template_lines(config: Config, rows: Sequence[Row]) -> Iterator[str]:
    """The first conversation as text, with what is trained or sampled between » and «. Nothing for plain prompts, or if
    the tokenizer is not on this machine."""
    row = next((row for row in islice(rows, 1) if not isinstance(row["prompt"], str)), None)
    if row is None:
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
    notes: list[str] = []
    try:
        text = _shown(config, tokenizer, row)
        if config.method.reads not in ("prompts", "recorded"):
            notes = trained_text_notes(tokenizer, row)
    except UserError as error:
        raise UserError(f"row 1 of the training data: {error}") from error
    cut = f"…{text[-LONGEST:]}" if len(text) > LONGEST else text
    yield f"the first row, as the chat template writes it (»trained or sampled«): {cut!r}"
    yield from (f"note: {note}" for note in notes)


def _shown(config: Config, tokenizer: Any, row: Row) -> str:
    reads = config.method.reads
    if reads in ("prompts", "recorded"):
        talk = Conversation.of(tokenizer, row["prompt"], row.get("tools"))
        return f"{tokenizer.decode(talk.ids(talk.before(len(row['prompt']))))}»…«"
    messages, first = conversation_of({**row, "answer": row["chosen"]} if reads == "pairs" else row)
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
