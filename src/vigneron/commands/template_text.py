"""What the model's chat template writes for a recipe's first row: for `vigneron validate`."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from vigneron.config import Config
from vigneron.data.formats import conversation_of
from vigneron.data.prompts import Row
from vigneron.errors import UserError
from vigneron.policy.chat import Conversation, mint, set_template_defaults
from vigneron.policy.chat_template import set_date
from vigneron.policy.load import local_tokenizer

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
    set_template_defaults(tokenizer, model.chat_template_kwargs)
    set_date(model.chat_date)
    try:
        text, left_out = _shown(config, tokenizer, row)
    except UserError as error:
        raise UserError(f"row 1 of the training data: {error}") from error
    cut = f"…{text[-LONGEST:]}" if len(text) > LONGEST else text
    yield f"the first row, as the chat template writes it (»trained or sampled«): {cut!r}"
    if left_out:
        yield (
            f"note: the generation prompt ends in {left_out!r}, which the template does not write before this answer: "
            "it is trained without; see `model.chat_template_kwargs`, or give the answer with its reasoning"
        )


def _shown(config: Config, tokenizer: Any, row: Row) -> tuple[str, str]:
    """The text, and the part of the generation prompt that is not in it."""
    reads = config.method.reads
    if reads in ("prompts", "recorded"):
        talk = Conversation.of(tokenizer, row["prompt"], row.get("tools"))
        return f"{tokenizer.decode(talk.ids(talk.before(len(row['prompt']))))}»…«", ""
    messages, first = conversation_of({**row, "answer": row["chosen"]} if reads == "pairs" else row)
    talk = Conversation.of(tokenizer, messages, row.get("tools"))
    turns = [turn for turn in range(first, len(messages)) if messages[turn]["role"] == "assistant"]
    answers = talk.assistant_spans(turns)
    before = talk.before(len(messages) - 1)
    if answers is None:
        return f"{tokenizer.decode(talk.ids(before))}»{talk.text(len(messages) - 1)}«", ""
    pieces, at = [], 0
    for start, stop in answers.spans:
        pieces += [answers.text[at:start], "»", answers.text[start:stop], "«"]
        at = stop
    text = "".join(piece if piece in ("»", "«") else tokenizer.decode(talk.ids(piece)) for piece in pieces)
    start = answers.spans[-1][0]
    left_out = "" if answers.text.startswith(before) else before[min(start, len(before)) :]
    return text, left_out
