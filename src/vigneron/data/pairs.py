"""Read preference pairs: rows with TRL's columns `prompt`, `chosen` and `rejected`, plain or conversational.

Without `prompt`, the common prefix of both texts is the prompt. Beside messages a text is a user's message. The
optional column `preferred` is a soft label: the probability that `chosen` is better. Imports no torch, as reading data
does not need it.
"""

import math
import unicodedata
from collections.abc import Sequence
from itertools import pairwise, takewhile
from typing import Any

import regex

from vigneron.data.dataset import check_row
from vigneron.data.first_pass import read_list
from vigneron.data.foreign_messages import with_messages
from vigneron.data.formats import is_conversation
from vigneron.data.prompts import Row, as_messages, continuation, conversation_text, prompt_text
from vigneron.errors import UserError
from vigneron.policy.message_forms import message_fault, message_text

SIDES = ("chosen", "rejected")
PREFERRED = "preferred"
"""Column of the soft label; a row without it has 1."""
UNSPACED = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}ー\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]")
"""Characters of scripts without spaces between words."""
FARTHEST = 1000
"""How many characters before the first difference a prompt may end, in such a script."""
JOINED_BEFORE = "\u200d\u0e33\u0eb3\uff9e\uff9f"
"""What belongs to the character before it, besides marks: a joiner, vowels of Thai and Lao, voice marks of Katakana."""
JOINED_AFTER = "\u200d\u1039\u17d2"
"""What belongs to the character after it: a joiner, the signs of stacked letters in Myanmar and Khmer."""


class PairReader:
    """Rows with `prompt`, `chosen` and `rejected`. Pairs of equal texts are left out and counted. If the soft label is
    below 0.5, the texts of a pair are exchanged. `spaced`: texts begin with a space, as `continuation` says."""

    def __init__(self, *, spaced: bool = False) -> None:
        self.spaced = spaced
        self.rows = self.ties = self.equal = 0
        self.example = ""

    def __call__(self, row: Row, place: object) -> Row | None:
        check_row(row, SIDES, place)
        row = _turned(_with_label(_with_prompt(row, place), place))
        check_row(row, ["prompt"], place)
        if self.spaced and isinstance(row["prompt"], str) and isinstance(row["chosen"], str):
            row = {**row, **{side: continuation(row["prompt"], row[side]) for side in SIDES}}
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
    given = [with_messages(row, f"{where}, row {number}") for number, row in enumerate(rows, start=1)]
    return read_list(given, PairReader(), where)


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
    elif isinstance(chosen, list):
        row = {**row, **_with_turns(row["prompt"], chosen, rejected, place)}
    for side in SIDES:
        if isinstance(row[side], list):
            _check_turns(row[side], side, place)
        if not _text(row, side):
            raise UserError(f"data: {place}: {side} is empty: give both texts")
    return row


def _with_turns(prompt: Any, chosen: list[Any], rejected: list[Any], place: object) -> Row:
    """A prompt of messages: a text is a user's message, or that of the turns which both sides begin with."""
    begins = {side[0]["role"] for side in (chosen, rejected)}
    if isinstance(prompt, list):
        if prompt == chosen[: len(prompt)] == rejected[: len(prompt)]:
            raise UserError(f"data: {place}: `chosen` and `rejected` begin with the prompt again: leave `prompt` out")
        return {}
    if not isinstance(prompt, str) or begins == {"assistant"}:
        return {"prompt": as_messages(prompt)}
    shared = _shared_turns(chosen, rejected)
    question = next((message_text(turn) for turn in reversed(shared) if turn["role"] == "user"), None)
    if question is None or question.strip() != prompt.strip():
        raise UserError(
            f"data: {place}: prompt is a text, and `chosen` and `rejected` do not begin with the same turns of which "
            "the last user's is that text: begin both with the answer, or leave `prompt` out"
        )
    return {"prompt": shared, "chosen": chosen[len(shared) :], "rejected": rejected[len(shared) :]}


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
    """The common prefix in whole words; the space after it belongs to the answers. Where a script has no spaces it ends
    at a character."""
    shorter = min(len(chosen), len(rejected))
    common, end = 0, shorter
    while common < end:  # halves that are equal
        middle = (common + end + 1) // 2
        if chosen[common:middle] == rejected[common:middle]:
            common = middle
        else:
            end = middle - 1
    prefix = chosen[:common]
    last_word = "" if prefix[-1:].isspace() else prefix.rsplit(maxsplit=1)[-1] if prefix else ""
    space = max(0, common - len(last_word) - 1)
    differing = chosen[common : common + 1] + rejected[common : common + 1]
    if UNSPACED.search(last_word + differing) is None:
        return chosen[:space]
    letter = common
    """The last character before a cut that is no punctuation."""
    for at in range(min(common, shorter - 1), max(space, common - FARTHEST), -1):
        if letter >= at:
            letter = next((i for i in range(at - 1, -1, -1) if unicodedata.category(chosen[i])[0] != "P"), -1)
        around = [chosen[letter] if letter >= 0 else "", chosen[at], rejected[at]]
        if any(map(UNSPACED.match, around)) and not _is_joined(chosen, at) and not _is_joined(rejected, at):
            return chosen[:at]
    return chosen[:space]


def _is_joined(text: str, at: int) -> bool:
    """Whether a text cannot be cut before a character: a grapheme or a word of a script with spaces goes on there, or
    the space before it belongs to what follows."""
    before, after = text[at - 1], text[at]
    if before in JOINED_AFTER or after in JOINED_BEFORE or unicodedata.category(after)[0] == "M":
        return True
    return before.isspace() or all(each.isalnum() and not UNSPACED.match(each) for each in (before, after))
