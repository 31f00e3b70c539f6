"""The rollout of methods that train on preference pairs: a chosen and a rejected text for each prompt.

`vigneron.data.pairs` reads the rows. A side may be a conversation that goes on after the prompt: the model's turns are
trained on, the others are read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vigneron.batch import Batch
from vigneron.core.selection import best_and_worst
from vigneron.data.formats import answered
from vigneron.data.pairs import PREFERRED, SIDES
from vigneron.data.prompts import STEP, Row, conversation_text, numbered, numbered_like, prompt_of
from vigneron.errors import UserError
from vigneron.policy.model import Policy
from vigneron.rollout.conversations import CONVERSATION
from vigneron.rollout.demonstrations import Demonstrations, demonstrations


@dataclass(frozen=True)
class Pairs:
    """`rollout(rows, step)`: 2N samples, the chosen text of each pair followed by the rejected one."""

    policy: Policy

    def __call__(self, rows: Sequence[Row], step: int = 0, first: int = 0) -> Batch:
        batch = Demonstrations(self.policy)(sides_of(rows), step, 2 * first)
        _refuse_cut(self.policy, batch.samples.truncated_B.tolist(), rows)
        columns = {"side": SIDES * len(rows), **_soft_columns(rows)}
        return batch.with_samples(
            group_B=batch.samples.group_B // 2, columns=columns, **_conversations(rows)
        ).with_packing(paired=True)


@dataclass(frozen=True)
class OrderedPairs:
    """`rollout(rows, step)`: 2N samples, both texts of each pair in one sequence, once in each order.

    So the model cannot learn from the order.
    """

    policy: Policy

    def __call__(self, rows: Sequence[Row], step: int = 0, first: int = 0) -> Batch:
        batch = Demonstrations(self.policy)(orders_of(rows), step, 2 * first)
        _refuse_cut(self.policy, batch.samples.truncated_B.tolist(), rows)
        columns = {"first": SIDES * len(rows), **_soft_columns(rows)}
        return batch.with_samples(group_B=batch.samples.group_B // 2, columns=columns)


def _conversations(rows: Sequence[Row]) -> dict[str, Any]:
    """Prompts and completions as the rows have them, where a side goes on for several turns."""
    completions = tuple(row[side] for row in rows for side in SIDES)
    if all(isinstance(each, str) or len(each) == 1 for each in completions):
        return {}
    turns = tuple(each if isinstance(each, list) and len(each) > 1 else None for each in completions)
    prompts = tuple(row["prompt"] for row in rows for _ in SIDES)
    return {"prompts": prompts, "completions": completions, "extras": {CONVERSATION: turns}}


def _soft_columns(rows: Sequence[Row]) -> dict[str, tuple[Any, ...]]:
    """The soft label of each of a pair's two samples; nothing where no row has one."""
    labels = [row.get(PREFERRED) for row in rows]
    return {} if all(label is None for label in labels) else {PREFERRED: tuple(x for x in labels for _ in SIDES)}


def soft_labels(batch: Batch) -> Tensor | None:
    """The probability that the chosen text is better, one for each sample; None where no pair has a soft label."""
    labels = batch.samples.columns.get(PREFERRED)
    if labels is None:
        return None
    device = batch.samples.completion_BT.device
    return torch.tensor([1.0 if label is None else label for label in labels], device=device)


def paired_up(batch: Batch) -> Batch:
    """Preference pairs from rewards: the best and the worst sample of each group as neighbours, then all other samples,
    which are excluded."""
    pairs = best_and_worst(batch.trained_rewards_B, batch.samples.group_B)
    inside = [sample for pair in pairs for sample in pair]
    order = [*inside, *sorted(set(range(len(batch))) - set(inside))]
    metrics = {"pairs": len(pairs), "groups_without_pair": len(batch.samples.group_B.unique()) - len(pairs)}
    excluded_B = torch.arange(len(batch), device=batch.signals.rewards_B.device) >= len(inside)
    chosen = batch.rows(order)
    if chosen.packing.owners is not None:  # both texts of a pair belong to one rank
        before = chosen.packing.owners
        owners = tuple(before[i - i % 2] if i < len(inside) else owner for i, owner in enumerate(before))
        chosen = chosen.with_packing(owners=owners)
    return chosen.with_packing(paired=True).with_signals(
        excluded_B=excluded_B, metrics={**batch.signals.metrics, **metrics}
    )


def sides_of(rows: Sequence[Row]) -> list[Row]:
    return [numbered_like(row, answered(prompt_of(row), row[side])) for row in rows for side in SIDES]


def orders_of(rows: Sequence[Row]) -> list[Row]:
    return [
        numbered_like(row, {**prompt_of(row), "answer": two_texts(row[one], row[other])})
        for row in rows
        for one, other in (SIDES, SIDES[::-1])
    ]


def two_texts(first: Any, second: Any) -> str:
    """The text after the prompt in a preference model's input."""
    return f"\nFirst: {conversation_text(first).strip()}\nSecond: {conversation_text(second).strip()}\nBetter:"


def sequences_of(policy: Policy, rows: Sequence[Row], of: str, *, joined: bool) -> list[tuple[int, ...]]:
    """The token ids of each text, or with `joined` of both texts of a pair in one sequence.

    Raises if one does not fit into the model's context: two truncated texts could be equal.
    """
    texts = demonstrations(policy, orders_of(rows) if joined else sides_of(rows), of=of)
    _refuse_cut(policy, [text.cut for text in texts], rows, of)
    return [text.ids for text in texts]


def _refuse_cut(policy: Policy, cut: Sequence[bool], rows: Sequence[Row], of: str = STEP) -> None:
    first = next((at for at, is_cut in enumerate(cut) if is_cut), None)
    if first is not None:
        number, where = numbered(rows[first // 2], first // 2 + 1, of)
        raise UserError(
            f"{sum(cut)} texts of preference pairs do not fit into the model's context of {policy.context_length} "
            f"tokens (the first is in row {number} of {where}): shorten them"
        )
