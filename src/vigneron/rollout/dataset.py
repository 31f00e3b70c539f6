"""Reading datasets: JSONL or CSV with a `prompt` column, every other column handed to the reward."""

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from vigneron.errors import UserError, did_you_mean
from vigneron.rollout.prompts import Row

LONGEST_LINE = 10_000_000

RESERVED = {"prompts", "completions", "completion_ids", "log_extra", "log_metric"}


def read_rows(path: str | Path) -> list[Row]:
    """All rows of a .jsonl or .csv file; a bad one is named by its number."""
    path = Path(path).expanduser()
    if not path.is_file():
        raise UserError(f"data: there is no file '{path.absolute()}'")
    readers = {".jsonl": _read_jsonl, ".csv": _read_csv}
    if path.suffix not in readers:
        raise UserError(f"data: '{path}' is not a .jsonl or .csv file")
    try:
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
            if row.get(column) in (None, "", []):
                has = [name for name, value in row.items() if value not in (None, "")]
                raise UserError(
                    f"data: {where}, row {number} has no '{column}'{did_you_mean(column, has) if has else ''}"
                )
        for column in set(row) & RESERVED:
            raise UserError(f"data: {where}, row {number}: '{column}' is a reward's own argument: rename the column")
        answer = row.get("answer") if "answer" in columns else None
        if answer is not None and not isinstance(answer, str | int | float) and not _is_conversation(answer):
            raise UserError(f"data: {where}, row {number}: answer is neither a text, a number nor messages")
        prompt = row.get("prompt")
        if prompt is not None and not isinstance(prompt, str) and not _is_conversation(prompt):
            raise UserError(
                f"data: {where}, row {number}: prompt is neither a text nor a list of "
                '{"role": …, "content": …} messages'
            )


def _is_conversation(prompt: Any) -> bool:
    return isinstance(prompt, list) and all(
        isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str) for m in prompt
    )


def _read_jsonl(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            if len(line) > LONGEST_LINE:
                raise UserError(f"data: '{path}', line {number} is longer than {LONGEST_LINE} characters")
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise UserError(f"data: '{path}', line {number} is not JSON: {error.msg}") from error
            if not isinstance(row, dict):
                raise UserError(f"data: '{path}', line {number} is not a JSON object")
            yield row


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
