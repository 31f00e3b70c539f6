"""Prompts: rows of a dataset, in an order that depends on the seed alone, and their token ids."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vigneron.core.draws import keyed_permutation
from vigneron.errors import UserError

Row = dict[str, Any]


@dataclass(frozen=True)
class PromptOrder:
    """Which rows a step works on. The order is a function of (seed, step): there is no cursor to lose."""

    rows: Sequence[Row]
    prompts_per_step: int
    seed: int

    def at(self, step: int) -> list[Row]:
        size = len(self.rows)
        first = step * self.prompts_per_step
        orders: dict[int, list[int]] = {}
        picked = []
        for place in range(first, first + self.prompts_per_step):
            epoch, index = divmod(place, size)
            order = orders.setdefault(epoch, keyed_permutation(self.seed, epoch, size))
            picked.append(self.rows[order[index]])
        return picked


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
