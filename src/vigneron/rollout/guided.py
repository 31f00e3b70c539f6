"""Samples drawn from another prompt than they are trained after, as in deliberative alignment (Guan et al. 2024): the
model sees a specification while it samples, and learns to answer without it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vigneron.batch import Batch
from vigneron.data.prompts import Row, filled, in_row, row_prompts_token_ids
from vigneron.errors import UserError
from vigneron.policy.message_forms import message_text
from vigneron.rollout.grape import with_prompts
from vigneron.rollout.on_policy import OnPolicy


@dataclass(frozen=True)
class GuidedSampling:
    """`rollout(rows, step, first)`: samples drawn after the template's prompt, and trained after the row's own."""

    on_policy: OnPolicy
    template: str

    def __call__(self, rows: Sequence[Row], step: int = 0, first: int = 0) -> Batch:
        if self.on_policy.environments is not None:
            rows = [self.on_policy.environments.prepared(row) for row in rows]
        drawn = self.on_policy([{**row, "prompt": guided(row, self.template)} for row in rows], step, first)
        size, tokenizer = self.on_policy.group_size, self.on_policy.policy.tokenizer
        own = [ids for ids in row_prompts_token_ids(tokenizer, rows) for _ in range(size)]
        batch = with_prompts(drawn, own)
        return batch.with_samples(prompts=tuple(row["prompt"] for row in rows for _ in range(size)))


def guided(row: Row, template: str) -> Any:
    """The template over the row's columns; of a conversation, in place of its last message's text."""
    prompt = row["prompt"]
    if isinstance(prompt, str):
        return _filled(template, row)
    last = prompt[-1]
    return [*prompt[:-1], {**last, "content": _filled(template, {**row, "prompt": message_text(last)})}]


def guided_prompts(rows: Sequence[Row], template: str, of: str) -> list[Any]:
    return [in_row(number, of, guided, row, template) for number, row in enumerate(rows, start=1)]


def _filled(template: str, row: Row) -> str:
    try:
        return filled(template, row)
    except (KeyError, IndexError, ValueError, AttributeError, TypeError) as error:
        raise UserError(f"sampling.prompt cannot be filled from the row's columns: {error!r}") from error
