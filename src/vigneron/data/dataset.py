"""Checks of rows in TRL's formats. All columns that are not checked here are passed to the reward."""

from collections.abc import Sequence
from typing import Any

from vigneron.data.formats import is_conversation
from vigneron.data.prompts import Row
from vigneron.data.rows import MissingColumn
from vigneron.errors import UserError, did_you_mean

ROLES = ("system", "developer", "user", "assistant", "tool")
RESERVED = {"prompts", "completions", "completion_ids", "log_extra", "log_metric"}


def check_rows(rows: Sequence[Row], columns: Sequence[str], where: str) -> None:
    """Raise for an empty dataset, and for the first row that lacks a required column (rows count from 1)."""
    if not rows:
        raise UserError(f"data: {where} has no rows")
    for number, row in enumerate(rows, start=1):
        try:
            check_row(row, columns, f"{where}, row {number}")
        except MissingColumn as error:
            more = sum(_lacks(other, error.column) for other in rows) - 1
            others = f", nor do {more} other rows" if more else ""
            raise UserError(f"{error.message}{others}{error.fix}") from error


def check_row(row: Row, columns: Sequence[str], place: str) -> None:
    """Raise if a row lacks a required column, or has an invalid prompt, answer or role."""
    for column in columns:
        if row.get(column) == []:
            raise UserError(f"data: {place}: '{column}' is an empty list: give at least one message")
        if _lacks(row, column):
            has = [name for name, value in row.items() if value not in (None, "")]
            hint = did_you_mean(column, has) if has else ""
            fix = ": add it, or set a `parent` that answers" if column == "answer" else ""
            raise MissingColumn(f"data: {place} has no '{column}'{hint}", column, fix)
    for column in () if RESERVED.isdisjoint(row) else row.keys() & RESERVED:
        raise UserError(f"data: {place}: '{column}' is reserved for an argument of rewards: rename the column")
    answer = row.get("answer") if "answer" in columns else None
    if answer is not None and not isinstance(answer, str | int | float) and not is_conversation(answer):
        raise UserError(f"data: {place}: answer must be a text, a number or messages")
    prompt = row.get("prompt")
    of_messages = isinstance(row.get("messages"), list)  # a prompt that was read from them needs no second check
    if prompt is not None and not isinstance(prompt, str) and not (of_messages or is_conversation(prompt)):
        raise UserError(f'data: {place}: prompt must be a text or a list of {{"role": …, "content": …}} messages')
    for column in ("messages" if of_messages else "prompt", "completion", "chosen", "rejected"):
        if isinstance(row.get(column), list):
            _check_roles(row[column], f"data: {place}: {column}")


def _check_roles(messages: Any, where: str) -> None:
    """Raise for unknown roles: many templates render any role, so a typo would be trained on."""
    try:
        if all(message["role"] in ROLES for message in messages):
            return
    except (TypeError, KeyError):  # no messages
        return
    for turn, message in enumerate(messages if is_conversation(messages) else (), start=1):
        if message["role"] not in ROLES:
            known = did_you_mean(message["role"], ROLES)
            raise UserError(f"{where}, turn {turn}: unknown role '{message['role']}'{known}")


def _lacks(row: Row, column: str) -> bool:
    return row.get(column) in (None, "", [])
