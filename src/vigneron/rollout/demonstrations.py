"""The rollout slot of methods that learn from given answers: a prompt with its answer, as if it had been sampled."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vigneron.batch import Batch
from vigneron.policy.model import Policy
from vigneron.rollout.prompts import Row, completion_text, prompts_token_ids


@dataclass(frozen=True)
class Demonstrations:
    """`rollout(rows, step)`: every answer whole, ended by the model's end-of-text token."""

    policy: Policy

    def __call__(self, rows: Sequence[Row], step: int = 0, first: int = 0) -> Batch:
        prompt_ids = prompts_token_ids(self.policy.tokenizer, [row["prompt"] for row in rows])
        answers = answer_token_ids(self.policy, rows)
        width, device = max(map(len, answers)), self.policy.device
        padded = [[*ids, *[self.policy.pad_id] * (width - len(ids))] for ids in answers]
        count = len(rows)
        return Batch(
            prompt_ids=tuple(prompt_ids),
            completion_BT=torch.tensor(padded, device=device),
            completion_ids=tuple(answers),
            shareable=self.policy.shares_prompts,
            spans=tuple(((len(p), len(p) + len(a)),) for p, a in zip(prompt_ids, answers, strict=True)),
            behaviour_BT=torch.zeros(count, width, device=device),
            truncated_B=torch.zeros(count, dtype=torch.bool, device=device),
            group_B=torch.arange(first, first + count, device=device),
            sample_B=torch.arange(first, first + count, device=device),
            prompts=tuple(row["prompt"] for row in rows),
            completions=tuple(completion_text(row["answer"]) for row in rows),
            columns={name: tuple(row.get(name) for row in rows) for name in rows[0] if name != "prompt"},
        )


def answer_token_ids(policy: Policy, rows: Sequence[Row]) -> list[tuple[int, ...]]:
    """An answer as the model would go on to write it: a space before it, unless it begins with one, the prompt ends in
    one or is a conversation's."""
    texts = [continuation(row["prompt"], completion_text(row["answer"])) for row in rows]
    found = policy.tokenizer(texts, add_special_tokens=False)["input_ids"]
    own = policy.tokenizer.eos_token_id
    end = own if own in policy.eos_ids else min(policy.eos_ids)
    return [(*ids, end) for ids in found]


def continuation(prompt: Any, answer: str) -> str:
    apart = not isinstance(prompt, str) or prompt[-1:].isspace() or answer[:1].isspace()
    return answer if apart else f" {answer}"
