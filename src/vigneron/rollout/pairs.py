"""The rollout of methods that train on preference pairs: a chosen and a rejected text for each prompt.

Rows have TRL's columns: `prompt`, `chosen` and `rejected`, plain or conversational. Without `prompt`, the common prefix
of both texts is the prompt. The optional column `preferred` is a soft label: the probability that `chosen` is better.
A side may be a conversation that goes on after the prompt: the model's turns are trained on, the others are read.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import Any

import torch
from torch import Tensor

from vigneron.batch import Batch
from vigneron.core.selection import best_and_worst
from vigneron.data.dataset import check_row
from vigneron.data.first_pass import read_list
from vigneron.data.formats import answered, is_conversation
from vigneron.data.prompts import STEP, Row, conversation_text, numbered, numbered_like, prompt_of, prompt_text
from vigneron.errors import UserError
from vigneron.policy.message_forms import message_fault, message_text
from vigneron.policy.model import Policy
from vigneron.rollout.conversations import CONVERSATION
from vigneron.rollout.demonstrations import Demonstrations, demonstrations

SIDES = ("chosen", "rejected")
PREFERRED = "preferred"
"""Column of the soft label; a row without it has 1."""


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


class PairReader:
    """Rows with `prompt`, `chosen` and `rejected`. Pairs of equal texts are left out and counted. If the soft label is
    below 0.5, the texts of a pair are exchanged."""

    def __init__(self) -> None:
        self.rows = self.ties = self.equal = 0
        self.example = ""

    def __call__(self, row: Row, place: object) -> Row | None:
        check_row(row, SIDES, place)
        row = _turned(_with_label(_with_prompt(row, place), place))
        check_row(row, ["prompt"], place)
        self.rows += 1
        self.ties += row.get(PREFERRED) == 0.5
        if _text(row, "chosen") != _text(row, "rejected"):
            return row
        self.equal += 1
        self.example = (
            self.example or f"the first in row {str(place).rpartition('row ')[2]}: {prompt_text(row['prompt'])[:60]!r}"
        )
        return None

    def add(self, later: "PairReader") -> None:
        self.rows += later.rows
        self.ties += later.ties
        self.equal += later.equal
        self.example = self.example or later.example

    def finish(self, where: str) -> list[str]:
        if self.ties == self.rows:
            raise UserError(
                f"data: {where}: all {self.rows} pairs are ties (`preferred` is 0.5): nothing can be learned"
            )
        if self.equal == self.rows:
            raise UserError(
                f"data: {where}: in all {self.rows} pairs `chosen` and `rejected` are equal, {self.example}"
            )
        return [f"{where}: {self.equal} pairs have equal texts and are left out, {self.example}"] if self.equal else []


def read_pairs(rows: Sequence[Row], where: str) -> tuple[list[Row], list[str]]:
    """Pairs of a few rows in memory, and a notice about pairs of equal texts, which are left out."""
    return read_list(rows, PairReader(), where)


def _turned(row: Row) -> Row:
    """With the text that is more probably better as `chosen`."""
    if row.get(PREFERRED, 1.0) >= 0.5:
        return row
    return {**row, "chosen": row["rejected"], "rejected": row["chosen"], PREFERRED: 1.0 - row[PREFERRED]}


def _text(row: Row, side: str) -> str:
    return conversation_text(row[side]).strip()


def _with_label(row: Row, place: object) -> Row:
    """The soft label as a float (in CSV it is text), from 0 to 1; an empty cell is none."""
    given = row.get(PREFERRED)
    if given in (None, ""):
        return {name: value for name, value in row.items() if name != PREFERRED}
    try:
        label = math.nan if isinstance(given, bool) else float(given)
    except (TypeError, ValueError, OverflowError):
        label = math.nan
    if not 0 <= label <= 1:
        raise UserError(
            f"data: {place}: {PREFERRED} is {given!r:.40}, not a number from 0 to 1: the probability that `chosen` is "
            "better"
        )
    return {**row, PREFERRED: label}


def _with_prompt(row: Row, place: object) -> Row:
    for side in SIDES:
        if isinstance(row[side], list) and not is_conversation(row[side]):
            raise UserError(f"data: {place}: {message_fault(row[side], side)}")
        if not isinstance(row[side], str | list):
            raise UserError(
                f'data: {place}: {side} is neither a string nor a list of {{"role": …, "content": …}} messages'
            )
    chosen, rejected = row["chosen"], row["rejected"]
    if isinstance(chosen, str) != isinstance(rejected, str):
        raise UserError(f"data: {place}: `chosen` and `rejected` must both be strings, or both lists of messages")
    if row.get("prompt") in (None, "", []):
        prompt = _shared_text(chosen, rejected) if isinstance(chosen, str) else _shared_turns(chosen, rejected)
        if not prompt:
            raise UserError(f"data: {place} has no 'prompt', and its texts have no common prefix: add the prompt")
        row = {**row, "prompt": prompt, "chosen": chosen[len(prompt) :], "rejected": rejected[len(prompt) :]}
    for side in SIDES:
        if isinstance(row[side], list):
            _check_turns(row[side], side, place)
        if not _text(row, side):
            raise UserError(f"data: {place}: {side} is empty: give both texts")
    return row


def _check_turns(messages: Sequence[Any], side: str, place: object) -> None:
    """An answer, or several with other turns between them."""
    roles = [message["role"] for message in messages]
    if roles[-1] != "assistant":
        raise UserError(f"data: {place}: {side} ends with the role '{roles[-1]}': expected 'assistant'")
    if roles[0] != "assistant":
        raise UserError(
            f"data: {place}: {side} goes on after the prompt with the role '{roles[0]}': expected 'assistant'; both "
            "sides must answer the same prompt"
        )
    for turn, (before, role) in enumerate(pairwise(roles), start=2):
        if before == role == "assistant":
            raise UserError(f"data: {place}: turn {turn} of {side} is a second answer in a row: join them")
    empty = next(
        (n for n, m in enumerate(messages, 1) if m["role"] == "assistant" and not message_text(m).strip()), None
    )
    if empty is not None and len(messages) > 1:
        raise UserError(f"data: {place}: turn {empty} of {side} is an empty answer: remove the row or fill it in")


def _shared_turns(chosen: list[Any], rejected: list[Any]) -> list[Any]:
    """The common first messages. The last message is the answer, even if both are equal."""
    turns = zip(chosen[:-1], rejected[:-1], strict=False)
    return [one for one, _ in takewhile(lambda pair: pair[0] == pair[1], turns)]


def _shared_text(chosen: str, rejected: str) -> str:
    """The common prefix in whole words; the space after it belongs to the answers."""
    letters = enumerate(zip(chosen, rejected, strict=False))
    spaces = [at for at, (one, _) in takewhile(lambda pair: pair[1][0] == pair[1][1], letters) if one.isspace()]
    return chosen[: max(spaces, default=0)]
