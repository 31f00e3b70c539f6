"""Checks of rows in TRL's formats. All columns that are not checked here are passed to the reward."""

from collections.abc import Sequence
from typing import Any

from vigneron.data.first_pass import MissingColumn, read_list
from vigneron.data.formats import ROLES, is_conversation, refuse_unknown_roles
from vigneron.data.prompts import Row
from vigneron.errors import UserError, did_you_mean, nearest
from vigneron.policy.message_forms import message_fault

KNOWN_ROLES = frozenset(ROLES)
ANSWERS = (str, int, float)
RESERVED = {"prompts", "completions", "completion_ids", "completion_truncated", "log_extra", "log_metric"}


def check_rows(rows: Sequence[Row], columns: Sequence[str], where: str) -> None:
    """Raise for an empty dataset, and for the first row that lacks a required column (rows count from 1)."""
    read_list(rows, ColumnReader(columns), where)


PROMPT_NAMES = ("question", "problem", "instruction", "query", "input", "text", "user")
"""What the column of prompts is often called."""


class ColumnReader:
    """Rows as they are, checked for required columns."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = columns

    def __call__(self, row: Row, place: object) -> Row:
        check_row(row, self.columns, place)
        return row

    def add(self, later: Any) -> None: ...

    def finish(self, where: str) -> list[str]:
        return []


def check_row(row: Row, columns: Sequence[str], place: object) -> None:
    """Raise if a row lacks a required column, or has an invalid prompt, answer or role."""
    for column in columns:
        value = row.get(column)
        blank = isinstance(value, str) and not value.strip() and (column == "answer" or not value)
        if value and not blank:
            continue
        if value == []:
            raise UserError(f"data: {place}: '{column}' is an empty list: give at least one message")
        if value is None or blank:
            has = [name for name, value in row.items() if value not in (None, "")]
            hint = did_you_mean(column, has) if has else ""
            if blank and column != "answer":
                raise UserError(f"data: {place} has an empty '{column}': fill it in, or remove the row")
            fix = _fix(column, columns, row, has)
            lacks = f"has no text in '{column}'" if blank else f"has no '{column}'{hint}"
            raise MissingColumn(f"data: {place} {lacks}", column, fix)
    for column in () if RESERVED.isdisjoint(row) else row.keys() & RESERVED:
        raise UserError(f"data: {place}: '{column}' is reserved for an argument of rewards: rename the column")
    answer = row.get("answer") if "answer" in columns else None
    if answer is not None and not isinstance(answer, ANSWERS) and not is_conversation(answer):
        raise UserError(f"data: {place}: answer must be a text, a number or messages")
    prompt = row.get("prompt")
    of_messages = isinstance(row.get("messages"), list)  # a prompt that was read from them needs no second check
    if isinstance(prompt, list) and not (of_messages or is_conversation(prompt)):
        raise UserError(f"data: {place}: {message_fault(prompt, 'prompt')}")
    if prompt is not None and not isinstance(prompt, str | list):
        raise UserError(f'data: {place}: prompt must be a text or a list of {{"role": …, "content": …}} messages')
    for column in ("messages" if of_messages else "prompt", "completion", "chosen", "rejected"):
        messages = row.get(column)
        if isinstance(messages, list):
            try:
                known = KNOWN_ROLES.issuperset([message["role"] for message in messages])
            except (TypeError, KeyError):  # no messages
                continue
            if not known and is_conversation(messages):
                refuse_unknown_roles(messages, f"data: {place}: {column}")


def _fix(column: str, columns: Sequence[str], row: Row, has: Sequence[str]) -> str:
    """What to do about a missing column of a row, which has others."""
    if column == "prompt" and "answer" in columns and set(has) == {"text"}:
        return ": split `text` into `prompt` and `completion`, which is trained on, or into `messages`"
    if column == "prompt" and (meant := next((name for name in PROMPT_NAMES if name in has), None)):
        return f": set `data.columns: {{prompt: {meant}}}` if that is it, or `data.template`"
    if not has or any(name in row for name in columns) or nearest(column, has) is not None:
        return ": add it, or set a `parent` that answers" if column == "answer" else ""
    if len(columns) != len(has):
        return f": name it in `data.columns: {{{column}: NAME}}`" + (", or set `data.template`" * (column == "prompt"))
    names = ", ".join(f"{ours}: {theirs}" for ours, theirs in zip(columns, has, strict=True))
    return f": set `data.columns: {{{names}}}` if that is it"
