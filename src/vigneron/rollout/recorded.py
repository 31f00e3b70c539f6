"""The rollout of methods that train on recorded samples: prompts with completions that some policy wrote."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vigneron.batch import Batch
from vigneron.data.prompts import Row, completion_text, numbered_like, prompt_of, texts_of
from vigneron.policy.model import Policy
from vigneron.rollout.demonstrations import Demonstration, batch_of_texts, demonstrations, within_context


@dataclass(frozen=True)
class Recorded:
    """`rollout(rows, step)`: every recorded completion. `behaviour_BT` has its recorded log-probs, NaN where there are
    none; a sum is spread over the tokens, and only its sum means anything."""

    policy: Policy

    def __call__(self, rows: Sequence[Row], step: int = 0, first: int = 0) -> Batch:
        texts = recorded_texts(self.policy, rows)
        batch = batch_of_texts(self.policy, rows, texts, [row["completion"] for row in rows], first)
        behaviour_BT = torch.zeros(batch.samples.completion_BT.shape)
        for at, (row, text) in enumerate(zip(rows, texts, strict=True)):
            count = len(text.completion_ids)
            given = None if text.cut else row.get("logprobs")  # of a text that does not fit they are another text's
            behaviour_BT[at, :count] = torch.tensor(_logprobs(given, count))
        truncated_B = batch.samples.truncated_B | torch.tensor([bool(row.get("truncated")) for row in rows]).to(
            self.policy.device
        )
        return batch.with_samples(behaviour_BT=behaviour_BT.to(self.policy.device), truncated_B=truncated_B)


def recorded_texts(policy: Policy, rows: Sequence[Row], of: str = "the step") -> list[Demonstration]:
    """Rows as token ids: the recorded tokens where they are this tokenizer's, else those of the text."""
    given = [
        numbered_like(row, {**prompt_of(row), "completion": row["completion"], "answer": row["completion"]})
        for row in rows
    ]
    texts = demonstrations(policy, given, of=of, sampled=True)
    known = [_token_ids(row.get("token_ids"), policy.text_config.vocab_size) for row in rows]
    decoded = texts_of(policy.tokenizer, known)
    as_written = []
    for row, text, ids, written in zip(rows, texts, known, decoded, strict=True):
        if ids and written == completion_text(row["completion"]):
            start = len(text.prompt_ids)
            whole = Demonstration((*text.prompt_ids, *ids), ((start, start + len(ids)),))
            text = within_context(whole, policy.context_length, "answers")
        elif row.get("truncated") and not text.cut and len(text.completion_ids) > 1:
            start, stop = text.spans[-1]
            text = Demonstration(text.ids[:-1], (*text.spans[:-1], (start, stop - 1)))
        as_written.append(text)
    return as_written


def _token_ids(given: Any, vocabulary: int) -> tuple[int, ...]:
    """Recorded tokens; none if they cannot be this model's."""
    usable = isinstance(given, list) and all(type(i) is int and 0 <= i < vocabulary for i in given)
    return tuple(given) if usable else ()


def _logprobs(given: Any, count: int) -> list[float]:
    """The log-probs of `count` tokens: as recorded, or with the recorded sum."""
    if isinstance(given, list) and len(given) == count:
        return [float(value) for value in given]
    if given in (None, "", []):
        return [torch.nan] * count
    total = sum(given) if isinstance(given, list) else given
    return [total / count] * count
