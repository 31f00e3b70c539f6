"""Prompts: the rows of a dataset, their columns and their token ids."""

from collections.abc import Callable, Mapping, Sequence
from string import Formatter
from typing import Any

from vigneron.errors import UserError
from vigneron.policy.chat import Conversation
from vigneron.policy.message_forms import message_text
from vigneron.policy.token_boundaries import plain_ids

Row = dict[str, Any]
STEP = "the step"
LARGEST_WHOLE = 1e16
"""Whole floats from here on are written with an exponent."""


class NumberedRow(dict[str, Any]):
    """A row of a run's data, with its number there, from 1, and its place in a file."""

    __slots__ = ("number", "place")

    def __init__(self, row: Row, number: int, place: object = "") -> None:
        super().__init__(row)
        self.number, self.place = number, place


def numbered(row: Row, number: int, of: str) -> tuple[int, str]:
    """The number of a row in messages, and of what: its number in the run's data if it is known, with its file, else
    those given."""
    if isinstance(row, NumberedRow):
        place = str(row.place)
        return row.number, ("the data" if of == STEP else of) + (f" ({place})" if place else "")
    return number, of


def numbered_like(row: Row, new: Row) -> Row:
    """A row made of another one, with its number and place."""
    return NumberedRow(new, row.number, row.place) if isinstance(row, NumberedRow) else new


def prompt_of(row: Row) -> Row:
    """What a template writes before an answer: the prompt, and the tools of a conversation."""
    return {name: row[name] for name in ("prompt", "tools") if name in row}


def prompt_text(prompt: Any) -> str:
    """A prompt as text, a conversation with one line per message."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(f"{message['role']}: {message_text(message)}" for message in prompt)


def as_messages(prompt: Any) -> list[Any]:
    """A prompt as a conversation: a text is a user's message."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


def completion_text(completion: Any) -> str:
    """A completion or answer as text: given as text, number, or TRL's list of messages. Of a conversation with an
    environment it is the last answer."""
    if isinstance(completion, list) and all(
        isinstance(m, dict) and {"content", "tool_calls"} & set(m) for m in completion
    ):
        if any(message.get("role") != "assistant" for message in completion):
            completion = [message for message in completion if message.get("role") == "assistant"][-1:]
        return "\n".join(message_text(message) for message in completion)
    return number_text(completion) if isinstance(completion, float) else str(completion)


def number_text(number: float) -> str:
    """A whole number without `.0`: tables turn integers into floats where a row has none."""
    return str(int(number)) if number.is_integer() and abs(number) < LARGEST_WHOLE else str(number)


class _RowFormatter(Formatter):
    def format_field(self, value: Any, format_spec: str) -> Any:
        if value is None:
            return ""
        if isinstance(value, float) and not format_spec:
            return number_text(value)
        return super().format_field(value, format_spec)


def filled(template: str, row: Mapping[str, Any]) -> str:
    """A template with the columns of a row: null is an empty text, a whole number has no `.0`."""
    if all(type(value) is str for value in row.values()):
        return template.format_map(row)  # the same, several times quicker
    return _RowFormatter().vformat(template, (), row)


def continuation(prompt: Any, answer: str) -> str:
    """The answer with a space before it, unless it begins with one or the prompt ends in one; after messages, as it
    is."""
    spaced = not isinstance(prompt, str) or prompt[-1:].isspace() or answer[:1].isspace()
    return answer if spaced else f" {answer}"


def conversation_text(completion: Any) -> str:
    """A completion for people to read: of a conversation all messages, each with its role."""
    if isinstance(completion, list) and len(completion) > 1:
        return prompt_text(completion)
    return completion_text(completion)


def columns_of(rows: Sequence[Row]) -> dict[str, tuple[Any, ...]]:
    """The columns of the rows without their prompts; None where a row lacks a column."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: tuple(row.get(name) for row in rows) for name in names if name != "prompt"}


def texts_of(tokenizer: Any, ids: Sequence[Sequence[int]], *, skip_special: bool = True) -> list[str]:
    """Decode completions, without special tokens, in one batch if the tokenizer is a fast one."""
    fast = getattr(tokenizer, "backend_tokenizer", None)
    if fast is not None:
        return fast.decode_batch([list(row) for row in ids], skip_special_tokens=skip_special)
    return tokenizer.batch_decode(ids, skip_special_tokens=skip_special, clean_up_tokenization_spaces=False)


def prompts_token_ids(
    tokenizer: Any,
    prompts: Sequence[Any],
    of: str = STEP,
    rows: Sequence[Row] | None = None,
) -> list[tuple[int, ...]]:
    """Token ids of plain prompts, or of conversations by the chat template with its generation prompt.

    `rows` are those that the prompts come from: errors name their numbers in the data instead of those in `of`, and the
    template writes their `tools`.
    """
    places = [(number, of) for number in range(1, len(prompts) + 1)]
    tools: list[Any] = [None] * len(prompts)
    if rows is not None:
        places = [numbered(row, *place) for row, place in zip(rows, places, strict=True)]
        tools = [row.get("tools") for row in rows]
    if prompts and all(isinstance(prompt, str) for prompt in prompts):
        sequences = plain_ids(tokenizer, prompts)
    else:
        each = zip(places, prompts, tools, strict=True)
        sequences = _written_ids(
            tokenizer, [in_row(*at, _written, tokenizer, prompt, given) for at, prompt, given in each]
        )
    for (number, where), prompt, ids in zip(places, prompts, sequences, strict=True):
        if not ids:
            raise UserError(f"row {number} of {where}: the prompt has no tokens: {prompt!r}")
    return [tuple(ids) for ids in sequences]


def row_prompts_token_ids(tokenizer: Any, rows: Sequence[Row], of: str = STEP) -> list[tuple[int, ...]]:
    """`prompts_token_ids` of the rows' own prompts."""
    return prompts_token_ids(tokenizer, [row["prompt"] for row in rows], of, rows)


def _written(tokenizer: Any, prompt: Any, tools: Any) -> str | list[int]:
    """The ids of a prompt; of a conversation in which nothing is escaped the text, still to be tokenized."""
    if isinstance(prompt, str):
        return plain_ids(tokenizer, [prompt])[0]
    conversation = Conversation.of(tokenizer, prompt, tools)
    text = conversation.before(len(prompt))
    return conversation.ids(text) if conversation.mark else text


def _written_ids(tokenizer: Any, written: Sequence[str | list[int]]) -> list[list[int]]:
    """Tokenize all texts together, which a fast tokenizer does on all cores."""
    texts = list(dict.fromkeys(each for each in written if isinstance(each, str)))
    ids = dict(zip(texts, Conversation(tokenizer, ()).encode(texts), strict=True))
    return [ids[each] if isinstance(each, str) else each for each in written]


def in_row(number: int, of: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function for a row; a `UserError` names the row."""
    try:
        return function(*arguments)
    except UserError as error:
        raise UserError(f"row {number} of {of}: {error}") from error
