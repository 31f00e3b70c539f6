"""Prompts: rows of a dataset, in an order that depends on the seed alone, and their token ids."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from vigneron.core.draws import keyed_permutation
from vigneron.errors import UserError

Row = dict[str, Any]

# Keeps draws for a step that draws again apart from the epochs' order.
MORE = 2**41


@dataclass(frozen=True)
class PromptOrder:
    """Which rows a step works on. The order is a function of (seed, step): there is no cursor to lose."""

    rows: Sequence[Row]
    prompts_per_step: int
    seed: int

    def more(self, step: int, time: int) -> list[Row]:
        """Other rows for a step that draws again, for the first, the second … time."""
        order = keyed_permutation(self.seed, MORE + 1000 * step + time, len(self.rows))
        return [self.rows[order[i % len(order)]] for i in range(self.prompts_per_step)]

    def at(self, step: int) -> list[Row]:
        size = len(self.rows)
        first = step * self.prompts_per_step
        places = [divmod(place, size) for place in range(first, first + self.prompts_per_step)]
        return [self.rows[_order(self.seed, epoch, size)[index]] for epoch, index in places]


@lru_cache(maxsize=4)
def _order(seed: int, epoch: int, size: int) -> list[int]:
    return keyed_permutation(seed, epoch, size)


def texts_of(tokenizer: Any, ids: Sequence[Sequence[int]]) -> list[str]:
    """Completions as texts, without special tokens; all at once where the tokenizer can."""
    fast = getattr(tokenizer, "backend_tokenizer", None)
    if fast is not None:
        return fast.decode_batch([list(row) for row in ids], skip_special_tokens=True)
    return tokenizer.batch_decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def prompts_token_ids(tokenizer: Any, prompts: Sequence[Any]) -> list[tuple[int, ...]]:
    """`prompt_token_ids` of each, plain ones all at once."""
    if prompts and all(isinstance(prompt, str) for prompt in prompts):
        found = tokenizer(list(prompts))["input_ids"]
        if all(found):
            return [tuple(ids) for ids in found]
    return [tuple(prompt_token_ids(tokenizer, prompt)) for prompt in prompts]


def prompt_token_ids(tokenizer: Any, prompt: Any) -> list[int]:
    """Ids of a plain prompt, or of a conversation through the model's chat template."""
    if isinstance(prompt, str):
        ids = tokenizer(prompt)["input_ids"]
    else:
        if not getattr(tokenizer, "chat_template", None):
            raise UserError("the prompts are conversations, but the model's tokenizer has no chat template")
        text = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    if not ids:
        raise UserError(f"a prompt has no tokens: {prompt!r}")
    return list(ids)


def prompt_text(prompt: Any) -> str:
    """A prompt as a person reads it."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(f"{message['role']}: {message['content']}" for message in prompt)


def completion_text(completion: Any) -> str:
    """A completion or an answer as text: plain, a number, or TRL's conversational form."""
    if isinstance(completion, list) and all(isinstance(m, dict) and "content" in m for m in completion):
        return "\n".join(str(message["content"]) for message in completion)
    return str(completion)
