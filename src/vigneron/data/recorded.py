"""Recorded samples with their scores, as `vigneron sample` writes them.

    prompt, completion    what was sampled for the prompt; text that follows it directly, or one assistant message
    reward                a number, in the column that `method.reward_column` names; null or empty: missing
    logprobs              optional: log-probs of the completion under the policy that wrote it, of each token or summed
    token_ids             optional: the completion's tokens; used where they decode to the completion's text
    truncated             optional: true for a completion that was cut, and has no end token

Other columns stay as they are: `answer` is the reference answer, not the sample.
"""

import math
from typing import Any

from vigneron.data.dataset import check_row
from vigneron.data.formats import is_conversation
from vigneron.data.prompts import Row
from vigneron.errors import UserError, did_you_mean
from vigneron.values import yes_or_no

RECORD = ("completion", "logprobs", "token_ids", "truncated")
LABELS = {"true": 1.0, "false": 0.0}
"""Labels as pandas and others write them in CSV."""
ROUNDING = 1e-2
"""How far above 0 a log-prob may be by rounding."""


class RecordedReader:
    """The rows that have a score, as a float; the others are counted."""

    def __init__(self, score: str, bounds: tuple[float, float] | None) -> None:
        self.score, self.bounds = score, bounds
        self.rows = self.missing = 0
        self.hint = ""

    def __call__(self, row: Row, place: object) -> Row | None:
        check_row(row, ["prompt"], place)
        _check_completion(row, place)
        value = score_of(row, self.score, self.bounds, place)
        if not self.rows:
            self.hint = did_you_mean(self.score, row)
        self.rows += 1
        self.missing += value is None
        return None if value is None else {**row, self.score: value, **_behaviour(row, place)}

    def add(self, later: "RecordedReader") -> None:
        self.hint = self.hint if self.rows else later.hint
        self.rows += later.rows
        self.missing += later.missing

    def finish(self, where: str) -> list[str]:
        missing, rows, score = self.missing, self.rows, self.score
        if missing == rows:
            raise UserError(
                f"data: {where}: no row has a reward in the column '{score}'{self.hint}: set `method.reward_column`"
            )
        return [f"{where}: {missing} of {rows} rows have no `{score}` and are left out"] if missing else []


def score_of(row: Row, column: str, bounds: tuple[float, float] | None, place: object) -> float | None:
    """A row's score as a float (in CSV it is text); None: missing."""
    given = row.get(column)
    if given in (None, ""):
        return None
    try:
        score = float(LABELS.get(given.strip().lower(), given) if isinstance(given, str) else given)
    except (TypeError, ValueError, OverflowError):
        score = math.nan
    wanted = "a number" if bounds is None else f"a number from {bounds[0]:g} to {bounds[1]:g}"
    if not math.isfinite(score) or (bounds is not None and not bounds[0] <= score <= bounds[1]):
        raise UserError(f"data: {place}: {column} is {given!r}, not {wanted}")
    return score


def without_record(row: Row, score: str | None) -> Row:
    """The row's prompt and what belongs to it, without the sample: for evaluation."""
    return {name: value for name, value in row.items() if name not in (*RECORD, score)}


def _check_completion(row: Row, place: object) -> None:
    completion = row.get("completion")
    if completion is None:
        raise UserError(f"data: {place} has no 'completion': the recorded sample{did_you_mean('completion', row)}")
    if isinstance(completion, str):
        return
    one_message = is_conversation(completion) and [m["role"] for m in completion] == ["assistant"]
    if not one_message or not is_conversation(row["prompt"]):
        raise UserError(
            f"data: {place}: completion must be a text, or after a conversation one message of role 'assistant'"
        )


def _behaviour(row: Row, place: object) -> Row:
    """`logprobs` as numbers, `truncated` as a bool (in CSV both are text), where the row has them."""
    optional: Row = {}
    if row.get("logprobs") not in (None, ""):
        given = row["logprobs"]
        values = [_logprob(value, place) for value in (given if isinstance(given, list) else [given])]
        optional["logprobs"] = values if isinstance(given, list) else values[0]
    if row.get("truncated") is not None:
        optional["truncated"] = bool(yes_or_no(row["truncated"]))
    return optional


def _logprob(given: Any, place: object) -> float:
    try:
        value = float(given)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not value <= ROUNDING or math.isinf(value):
        raise UserError(
            f"data: {place}: logprobs has {given!r}: expected log-probabilities, numbers that are at most 0"
        )
    return value
