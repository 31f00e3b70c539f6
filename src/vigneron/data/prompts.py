"""Prompts of a dataset, in an order that depends only on the seed, and their token ids."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from vigneron.core.draws import keyed_permutation
from vigneron.data.texts import Row
from vigneron.data.texts import completion_text as completion_text
from vigneron.data.texts import prompt_text as prompt_text
from vigneron.errors import UserError
from vigneron.policy.chat import Conversation

# Separates the keys of resampled prompts from those of the epochs' order.
RESAMPLED = 2**41


@dataclass(frozen=True)
class PromptOrder:
    """The rows of each step. The order is a function of (seed, step), so that no cursor has to be saved."""

    rows: Sequence[Row]
    prompts_per_step: int
    seed: int

    def more(self, step: int, time: int) -> list[Row]:
        """Rows for the `time`-th resampling of a step: other rows than its own, if there are any."""
        own = {id(row) for row in self.at(step)}
        order = [self.rows[i] for i in keyed_permutation(self.seed, RESAMPLED + 1000 * step + time, len(self.rows))]
        others = [row for row in order if id(row) not in own] or order
        return [others[i % len(others)] for i in range(self.prompts_per_step)]

    def at(self, step: int) -> list[Row]:
        size = len(self.rows)
        first = step * self.prompts_per_step
        places = [divmod(place, size) for place in range(first, first + self.prompts_per_step)]
        return [self.rows[_order(self.seed, epoch, size)[index]] for epoch, index in places]


@lru_cache(maxsize=4)
def _order(seed: int, epoch: int, size: int) -> list[int]:
    return keyed_permutation(seed, epoch, size)


def columns_of(rows: Sequence[Row]) -> dict[str, tuple[Any, ...]]:
    """The columns of the rows without their prompts; None where a row lacks a column."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: tuple(row.get(name) for row in rows) for name in names if name != "prompt"}


def texts_of(tokenizer: Any, ids: Sequence[Sequence[int]]) -> list[str]:
    """Decode completions without special tokens, in one batch if the tokenizer is a fast one."""
    fast = getattr(tokenizer, "backend_tokenizer", None)
    if fast is not None:
        return fast.decode_batch([list(row) for row in ids], skip_special_tokens=True)
    return tokenizer.batch_decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def prompts_token_ids(tokenizer: Any, prompts: Sequence[Any], of: str = "the step") -> list[tuple[int, ...]]:
    """Token ids of plain prompts, or of conversations by the chat template with its generation prompt."""
    if prompts and all(isinstance(prompt, str) for prompt in prompts):
        rows = tokenizer(list(prompts))["input_ids"]
    else:
        rows = [in_row(number, of, _prompt_ids, tokenizer, prompt) for number, prompt in enumerate(prompts, start=1)]
    for number, ids in enumerate(rows, start=1):
        if not ids:
            raise UserError(f"row {number} of {of}: the prompt has no tokens: {prompts[number - 1]!r}")
    return [tuple(ids) for ids in rows]


def _prompt_ids(tokenizer: Any, prompt: Any) -> list[int]:
    if isinstance(prompt, str):
        return list(tokenizer(prompt)["input_ids"])
    conversation = Conversation.of(tokenizer, prompt)
    return conversation.ids(conversation.before(len(prompt)))


def in_row(number: int, of: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function for a row; a `UserError` names the row."""
    try:
        return function(*arguments)
    except UserError as error:
        raise UserError(f"row {number} of {of}: {error}") from error
