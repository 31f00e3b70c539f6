"""Prompts: the rows of a dataset, their columns and their token ids."""

from collections.abc import Callable, Sequence
from typing import Any

from vigneron.errors import UserError
from vigneron.policy.chat import Conversation
from vigneron.policy.message_forms import message_text
from vigneron.policy.seams import plain_ids

Row = dict[str, Any]


def prompt_text(prompt: Any) -> str:
    """A prompt as text, a conversation with one line per message."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(f"{message['role']}: {message_text(message)}" for message in prompt)


def completion_text(completion: Any) -> str:
    """A completion or answer as text: given as text, number, or TRL's list of messages."""
    if isinstance(completion, list) and all(
        isinstance(m, dict) and {"content", "tool_calls"} & set(m) for m in completion
    ):
        return "\n".join(message_text(message) for message in completion)
    return str(completion)


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
    tokenizer: Any, prompts: Sequence[Any], of: str = "the step", *, tools: Sequence[Any] | None = None
) -> list[tuple[int, ...]]:
    """Token ids of plain prompts, or of conversations by the chat template with its generation prompt.

    `tools` has the tools of each conversation, which the template writes.
    """
    if prompts and all(isinstance(prompt, str) for prompt in prompts):
        rows = plain_ids(tokenizer, prompts)
    else:
        both = zip(prompts, tools or [None] * len(prompts), strict=True)
        rows = [in_row(n, of, _prompt_ids, tokenizer, prompt, given) for n, (prompt, given) in enumerate(both, start=1)]
    for number, ids in enumerate(rows, start=1):
        if not ids:
            raise UserError(f"row {number} of {of}: the prompt has no tokens: {prompts[number - 1]!r}")
    return [tuple(ids) for ids in rows]


def row_prompts_token_ids(tokenizer: Any, rows: Sequence[Row], of: str = "the step") -> list[tuple[int, ...]]:
    """`prompts_token_ids` of rows, with their `tools`."""
    return prompts_token_ids(tokenizer, [row["prompt"] for row in rows], of, tools=[row.get("tools") for row in rows])


def _prompt_ids(tokenizer: Any, prompt: Any, tools: Any) -> list[int]:
    if isinstance(prompt, str):
        return plain_ids(tokenizer, [prompt])[0]
    conversation = Conversation.of(tokenizer, prompt, tools)
    return conversation.ids(conversation.before(len(prompt)))


def in_row(number: int, of: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function for a row; a `UserError` names the row."""
    try:
        return function(*arguments)
    except UserError as error:
        raise UserError(f"row {number} of {of}: {error}") from error
