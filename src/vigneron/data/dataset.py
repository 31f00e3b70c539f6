"""Read datasets: JSONL or CSV in TRL's formats. All other columns are passed to the reward."""

import csv
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from vigneron.data.formats import is_conversation
from vigneron.data.prompts import Row, prompt_text
from vigneron.errors import UserError, did_you_mean
from vigneron.files import parse_int, user_path

LONGEST_LINE = 10_000_000
LARGEST_FILE = 4 * 2**30
"""Bytes: all rows are held in memory."""

ROLES = ("system", "developer", "user", "assistant", "tool")
RESERVED = {"prompts", "completions", "completion_ids", "log_extra", "log_metric"}


def read_rows(path: str | Path) -> list[Row]:
    """All rows of a .jsonl or .csv file. Errors name the row or line by its number."""
    path = user_path(path)
    if not path.is_file():
        raise UserError(f"data: file not found: '{path.absolute()}'")
    readers = {".jsonl": _read_jsonl, ".csv": _read_csv}
    if path.suffix not in readers:
        raise UserError(f"data: '{path}' is not a .jsonl or .csv file")
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise UserError(f"data: '{path}' is larger than {LARGEST_FILE // 2**30} GiB: use a part of it")
        return list(readers[path.suffix](path))
    except UnicodeDecodeError as error:
        raise UserError(f"data: '{path}' is not UTF-8 text ({error.reason})") from error
    except OSError as error:
        raise UserError(f"data: cannot read '{path}': {error.strerror}") from error


def check_rows(rows: Sequence[Row], columns: Sequence[str], where: str) -> None:
    """Raise for an empty dataset, and for the first row that lacks a required column (rows count from 1)."""
    if not rows:
        raise UserError(f"data: {where} has no rows")
    for number, row in enumerate(rows, start=1):
        for column in columns:
            if row.get(column) == []:
                raise UserError(f"data: {where}, row {number}: '{column}' is an empty list: give at least one message")
            if _lacks(row, column):
                has = [name for name, value in row.items() if value not in (None, "")]
                hint = did_you_mean(column, has) if has else ""
                more = sum(_lacks(other, column) for other in rows) - 1
                others = f", nor do {more} other rows" if more else ""
                fix = ": add it, or set a `parent` that answers" if column == "answer" else ""
                raise UserError(f"data: {where}, row {number} has no '{column}'{hint}{others}{fix}")
        for column in set(row) & RESERVED:
            raise UserError(
                f"data: {where}, row {number}: '{column}' is reserved for an argument of rewards: rename the column"
            )
        answer = row.get("answer") if "answer" in columns else None
        if answer is not None and not isinstance(answer, str | int | float) and not is_conversation(answer):
            raise UserError(f"data: {where}, row {number}: answer must be a text, a number or messages")
        prompt = row.get("prompt")
        if prompt is not None and not isinstance(prompt, str) and not is_conversation(prompt):
            raise UserError(
                f'data: {where}, row {number}: prompt must be a text or a list of {{"role": …, "content": …}} messages'
            )
        for column in ("prompt", "messages", "completion", "chosen", "rejected"):
            _check_roles(row.get(column), f"data: {where}, row {number}: {column}")


def _check_roles(messages: Any, where: str) -> None:
    """Raise for unknown roles: many templates render any role, so a typo would be trained on."""
    for turn, message in enumerate(messages if is_conversation(messages) else (), start=1):
        if message["role"] not in ROLES:
            known = did_you_mean(message["role"], ROLES)
            raise UserError(f"{where}, turn {turn}: unknown role '{message['role']}'{known}")


def _lacks(row: Row, column: str) -> bool:
    return row.get(column) in (None, "", [])


def distinct_rows(rows: Sequence[Row], where: str, *, one_answer: bool) -> tuple[list[Row], list[str]]:
    """Rows without exact duplicates, and notices about them.

    `one_answer`: the same prompt with two answers is an error.
    """
    first_of: dict[str, int] = {}
    numbers: dict[str, int] = {}
    conflicts: list[tuple[int, int]] = []
    for number, row in enumerate(rows, start=1):
        first_of.setdefault(_as_key(row), number)
        before = numbers.setdefault(_as_key(row.get("prompt")), number)
        if one_answer and row.get("answer") != rows[before - 1].get("answer"):
            conflicts.append((before, number))
    if conflicts:
        before, number = conflicts[0]
        more = f" ({len(conflicts)} such rows in total)" if len(conflicts) > 1 else ""
        raise UserError(
            f"data: {where}, rows {before} and {number} have the same prompt and different answers{more}: keep one"
        )
    repeats = len(rows) - len(first_of)
    notices = [f"{where}: {repeats} duplicate rows are dropped"] if repeats else []
    return [rows[number - 1] for number in first_of.values()], notices


def overlap_notices(train: Sequence[Row], held_out: Sequence[Row]) -> list[str]:
    """A notice if held-out prompts are also in the training data."""
    trained = {_as_key(row.get("prompt")) for row in train}
    both = [(number, row) for number, row in enumerate(held_out, start=1) if _as_key(row.get("prompt")) in trained]
    if not both:
        return []
    number, row = both[0]
    return [
        f"{len(both)} of {len(held_out)} prompts of `held_out` are also in `train`, the first in row {number}: "
        f"{prompt_text(row['prompt'])[:60]!r}; held-out metrics do not measure generalization on them"
    ]


def _as_key(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _read_jsonl(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE + 1), ""), start=1):
            if not line.strip():
                continue
            where = f"data: '{path}', line {number}"
            if len(line) > LONGEST_LINE:
                raise UserError(f"{where} is longer than {LONGEST_LINE} characters")
            row = _parsed(line, where)
            if not isinstance(row, dict):
                raise UserError(f"{where} is not a JSON object")
            yield row


def _parsed(line: str, where: str) -> Any:
    """Parse JSON that can also be written back to the run's folder: no NaN, no unpaired surrogates."""
    try:
        row = json.loads(line, parse_constant=_invalid_number, parse_float=_finite, parse_int=parse_int)
    except json.JSONDecodeError as error:
        raise UserError(f"{where} is not JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise UserError(f"{where} cannot be read: {reason}") from error
    if "\\ud" in line or "\\uD" in line:
        try:
            json.dumps(row, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise UserError(f"{where} contains an unpaired surrogate (half of a character): fix the text") from None
    return row


def _invalid_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number: write null")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _invalid_number(text[:20])


def _read_csv(path: Path) -> Iterator[Row]:
    csv.field_size_limit(LONGEST_LINE)
    with path.open(encoding="utf-8-sig", newline="") as file:
        try:
            for number, row in enumerate(csv.DictReader(file), start=1):
                if None in row:
                    raise UserError(f"data: '{path}', row {number} has more fields than its header: {row[None]}")
                yield dict(row)
        except csv.Error as error:
            raise UserError(f"data: '{path}' is not valid CSV: {error}") from error
