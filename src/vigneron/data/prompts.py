"""Prompts: the rows of a dataset, their columns and their token ids."""

from collections.abc import Callable, Sequence
from typing import Any

from vigneron.data.texts import Row
from vigneron.data.texts import completion_text as completion_text
from vigneron.data.texts import prompt_text as prompt_text
from vigneron.errors import UserError
from vigneron.policy.chat import Conversation


def columns_of(rows: Sequence[Row]) -> dict[str, tuple[Any, ...]]:
    """What the rows hold beside their prompts: a column that some of them lack is None there."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: tuple(row.get(name) for row in rows) for name in names if name != "prompt"}


def texts_of(tokenizer: Any, ids: Sequence[Sequence[int]]) -> list[str]:
    """Completions as texts, without special tokens; all at once where the tokenizer can."""
    fast = getattr(tokenizer, "backend_tokenizer", None)
    if fast is not None:
        return fast.decode_batch([list(row) for row in ids], skip_special_tokens=True)
    return tokenizer.batch_decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def prompts_token_ids(tokenizer: Any, prompts: Sequence[Any], of: str = "the step") -> list[tuple[int, ...]]:
    """Ids of plain prompts, or of conversations through the chat template up to where the answer begins."""
    if prompts and all(isinstance(prompt, str) for prompt in prompts):
        found = tokenizer(list(prompts))["input_ids"]
    else:
        found = [in_row(number, of, _prompt_ids, tokenizer, prompt) for number, prompt in enumerate(prompts, start=1)]
    for number, ids in enumerate(found, start=1):
        if not ids:
            raise UserError(f"row {number} of {of}: the prompt has no tokens: {prompts[number - 1]!r}")
    return [tuple(ids) for ids in found]


def _prompt_ids(tokenizer: Any, prompt: Any) -> list[int]:
    if isinstance(prompt, str):
        return list(tokenizer(prompt)["input_ids"])
    conversation = Conversation.of(tokenizer, prompt)
    return conversation.ids(conversation.before(len(prompt)))


def in_row(number: int, of: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function makes of a row; an error of the user's names it."""
    try:
        return function(*arguments)
    except UserError as error:
        raise UserError(f"row {number} of {of}: {error}") from error
