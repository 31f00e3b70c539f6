"""Reading datasets: JSONL or CSV in TRL's formats, every other column handed to the reward."""

import csv
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from vigneron.data.formats import is_conversation
from vigneron.data.texts import Row, prompt_text
from vigneron.errors import UserError, did_you_mean
from vigneron.files import parse_int, user_path

LONGEST_LINE = 10_000_000
LARGEST_FILE = 4 * 2**30
"""Bytes: all rows are held in memory."""

ROLES = ("system", "developer", "user", "assistant", "tool")
RESERVED = {"prompts", "completions", "completion_ids", "log_extra", "log_metric"}


def read_rows(path: str | Path) -> list[Row]:
    """All rows of a .jsonl or .csv file; a bad one is named by its number."""
    path = user_path(path)
    if not path.is_file():
        raise UserError(f"data: there is no file '{path.absolute()}'")
    readers = {".jsonl": _read_jsonl, ".csv": _read_csv}
    if path.suffix not in readers:
        raise UserError(f"data: '{path}' is not a .jsonl or .csv file")
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise UserError(f"data: '{path}' is larger than {LARGEST_FILE // 2**30} GiB: take a part of it")
        return list(readers[path.suffix](path))
    except UnicodeDecodeError as error:
        raise UserError(f"data: '{path}' is not UTF-8 text ({error.reason})") from error
    except OSError as error:
        raise UserError(f"data: cannot read '{path}': {error.strerror}") from error


def check_rows(rows: Sequence[Row], columns: Sequence[str], where: str) -> None:
    """Refuse an empty dataset, and the first row without a needed column, by number (1 is the first row)."""
    if not rows:
        raise UserError(f"data: {where} has no rows")
    for number, row in enumerate(rows, start=1):
        for column in columns:
            if _lacks(row, column):
                has = [name for name, value in row.items() if value not in (None, "")]
                hint = did_you_mean(column, has) if has else ""
                more = sum(_lacks(other, column) for other in rows) - 1
                counted = f", nor have {more} others" if more else ""
                mend = ": add it, or a `parent` that answers" if column == "answer" else ""
                raise UserError(f"data: {where}, row {number} has no '{column}'{hint}{counted}{mend}")
        for column in set(row) & RESERVED:
            raise UserError(f"data: {where}, row {number}: '{column}' is a reward's own argument: rename the column")
        answer = row.get("answer") if "answer" in columns else None
        if answer is not None and not isinstance(answer, str | int | float) and not is_conversation(answer):
            raise UserError(f"data: {where}, row {number}: answer is neither a text, a number nor messages")
        prompt = row.get("prompt")
        if prompt is not None and not isinstance(prompt, str) and not is_conversation(prompt):
            raise UserError(
                f"data: {where}, row {number}: prompt is neither a text nor a list of "
                '{"role": …, "content": …} messages'
            )
        for column in ("prompt", "messages", "completion", "chosen", "rejected"):
            _check_roles(row.get(column), f"data: {where}, row {number}: {column}")


def _check_roles(messages: Any, where: str) -> None:
    """A template that knows no roles writes any of them down: a slip would be trained on."""
    for turn, message in enumerate(messages if is_conversation(messages) else (), start=1):
        if message["role"] not in ROLES:
            known = did_you_mean(message["role"], ROLES)
            raise UserError(f"{where}, turn {turn} has the role '{message['role']}', which nobody knows{known}")


def _lacks(row: Row, column: str) -> bool:
    return row.get(column) in (None, "", [])


def distinct_rows(rows: Sequence[Row], where: str, *, one_answer: bool) -> tuple[list[Row], list[str]]:
    """Rows without their exact repeats, and what is to be said of that.

    `one_answer`: the same prompt with two answers is an error.
    """
    first_of: dict[str, int] = {}
    numbers: dict[str, int] = {}
    clashes: list[tuple[int, int]] = []
    for number, row in enumerate(rows, start=1):
        first_of.setdefault(_as_key(row), number)
        before = numbers.setdefault(_as_key(row.get("prompt")), number)
        if one_answer and row.get("answer") != rows[before - 1].get("answer"):
            clashes.append((before, number))
    if clashes:
        before, number = clashes[0]
        more = f" ({len(clashes)} such rows in all)" if len(clashes) > 1 else ""
        raise UserError(
            f"data: {where}, rows {before} and {number} have the same prompt and different answers{more}: keep one"
        )
    repeats = len(rows) - len(first_of)
    notices = [f"{where}: {repeats} rows repeat an earlier one and are left out"] if repeats else []
    return [rows[number - 1] for number in first_of.values()], notices


def not_apart(train: Sequence[Row], held_out: Sequence[Row]) -> list[str]:
    """A notice, where prompts that are trained on are evaluated as if they were held out."""
    trained = {_as_key(row.get("prompt")) for row in train}
    both = [(number, row) for number, row in enumerate(held_out, start=1) if _as_key(row.get("prompt")) in trained]
    if not both:
        return []
    number, row = both[0]
    return [
        f"{len(both)} of {len(held_out)} prompts of `held_out` stand in `train` too, the first in row {number}: "
        f"{prompt_text(row['prompt'])[:60]!r}; held-out figures then say little about new prompts"
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
    """JSON that can be written again, as the run's folder needs it: no NaN, and no half of a character."""
    try:
        row = json.loads(line, parse_constant=_no_number, parse_float=_finite, parse_int=parse_int)
    except json.JSONDecodeError as error:
        raise UserError(f"{where} is not JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise UserError(f"{where} cannot be read: {reason}") from error
    if "\\ud" in line or "\\uD" in line:
        try:
            json.dumps(row, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise UserError(f"{where} holds half of a character (an unpaired surrogate): mend the text") from None
    return row


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON: write null")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _no_number(text[:20])


def _read_csv(path: Path) -> Iterator[Row]:
    csv.field_size_limit(LONGEST_LINE)
    with path.open(encoding="utf-8-sig", newline="") as file:
        try:
            for number, row in enumerate(csv.DictReader(file), start=1):
                if None in row:
                    raise UserError(f"data: '{path}', row {number} has more fields than its header: {row[None]}")
                yield dict(row)
        except csv.Error as error:
            raise UserError(f"data: '{path}' is not readable as CSV: {error}") from error
