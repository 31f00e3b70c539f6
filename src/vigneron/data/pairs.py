"""Read preference pairs: rows with TRL's columns `prompt`, `chosen` and `rejected`, plain or conversational.

Without `prompt`, the common prefix of both texts is the prompt. The optional column `preferred` is a soft label: the
probability that `chosen` is better. Imports no torch, as reading data does not need it.
"""

import math
from collections.abc import Sequence
from itertools import pairwise, takewhile
from typing import Any

from vigneron.data.dataset import check_row
from vigneron.data.first_pass import read_list
from vigneron.data.formats import is_conversation
from vigneron.data.prompts import Row, conversation_text, prompt_text
from vigneron.errors import UserError
from vigneron.policy.message_forms import message_fault, message_text

SIDES = ("chosen", "rejected")
PREFERRED = "preferred"
"""Column of the soft label; a row without it has 1."""


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
