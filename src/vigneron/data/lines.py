"""Files of text as rows: JSON Lines and CSV. An index of offsets is kept in memory, the rows stay in the file."""

import csv
import io
import json
import math
import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from vigneron.errors import UserError
from vigneron.files import open_regular, parse_int, regular_opener

Row = dict[str, Any]

LONGEST_LINE = 10_000_000
BOM = b"\xef\xbb\xbf"


@dataclass
class LineRows:
    """The rows of a .jsonl or .csv file, read from the file at every access."""

    path: Path
    name: str
    """The file in messages: one that was unpacked has the name of its archive."""
    offsets: np.ndarray
    """Where each row begins, and the end of the file."""
    header: tuple[str, ...] | None = None
    """The columns of a CSV file."""
    _handle: int | None = field(default=None, repr=False)

    @classmethod
    def of(cls, path: Path, name: str, offsets: np.ndarray | None = None) -> "LineRows":
        """Index a file, unless its offsets are known. Raises for a line that is too long."""
        try:
            if path.suffix == ".csv":
                header, offsets = _csv_index(path, name, offsets)
                return cls(path, name, offsets, header)
            return cls(path, name, _jsonl_index(path, name) if offsets is None else offsets)
        except OSError as error:
            raise UserError(f"data: cannot read '{name}': {error.strerror}") from error

    @property
    def bytes(self) -> int:
        return int(self.offsets[-1])

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Row:
        try:
            if self._handle is None:
                self._handle = regular_opener(str(self.path), os.O_RDONLY | os.O_CLOEXEC)
            start, stop = int(self.offsets[index]), int(self.offsets[index + 1])
            data = os.pread(self._handle, stop - start, start)
        except OSError as error:
            raise UserError(f"data: cannot read '{self.name}': {error.strerror}") from error
        if self.header is not None:
            return self._csv_row(_text(data.removeprefix(BOM), self.name), index)
        if not data.endswith(b"\n") or data.count(b"\n") > 1:  # blank lines follow
            data = data.split(b"\n", 1)[0]
        return parse_line(_text(data.removeprefix(BOM), self.name), lambda: self._line(index))

    def __iter__(self) -> Iterator[Row]:
        return self.between(0, len(self))

    def between(self, first: int, last: int) -> Iterator[Row]:
        """Rows first … last − 1, read in large pieces."""
        if self.header is not None:
            yield from (self[index] for index in range(first, last))
            return
        with open_regular(self.path) as file:
            file.seek(int(self.offsets[first]))
            for index in range(first, last):
                while not (line := file.readline()).strip():
                    if not line:
                        raise UserError(f"data: '{self.name}' changed while the run was reading it: restore it")
                text = _text(line.removeprefix(BOM) if index == 0 else line, self.name)
                yield parse_line(text, lambda index=index: self._line(index))

    def place(self, index: int) -> str:
        return f"'{self.name}', row {index + 1}"

    def _line(self, index: int) -> str:
        with open_regular(self.path) as file:
            left, number = int(self.offsets[index]), 1
            while left > 0 and (block := file.read(min(left, 2**20))):
                number, left = number + block.count(b"\n"), left - len(block)
        return f"data: '{self.name}', line {number}"

    def _csv_row(self, text: str, index: int) -> Row:
        assert self.header is not None
        place = f"data: '{self.name}', row {index + 1}"
        csv.field_size_limit(LONGEST_LINE)
        try:
            fields = next(csv.reader(io.StringIO(text, newline="")), [])
        except csv.Error as error:
            raise UserError(f"data: '{self.name}' is not valid CSV: {error}") from error
        if len(fields) > len(self.header):
            raise UserError(f"{place} has more fields than its header: {fields[len(self.header) :]}")
        return dict(zip(self.header, [*fields, *[None] * (len(self.header) - len(fields))], strict=True))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_handle": None}

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            os.close(self._handle)  # type: ignore[arg-type]


def _jsonl_index(path: Path, name: str) -> np.ndarray:
    """The start of every line that is not blank, and the end of the file."""
    offsets, at = array("q"), 0
    with open_regular(path) as file:
        for number, line in enumerate(iter(lambda: file.readline(4 * LONGEST_LINE + 4), b""), start=1):
            if len(line) > LONGEST_LINE and len(line.decode("utf-8", errors="replace")) > LONGEST_LINE:
                raise UserError(f"data: '{name}', line {number} is longer than {LONGEST_LINE} characters")
            if line.strip() and line.strip() != BOM:
                offsets.append(at)
            at += len(line)
    offsets.append(at)
    return np.frombuffer(offsets, dtype=np.int64)


def _csv_index(path: Path, name: str, known: np.ndarray | None) -> tuple[tuple[str, ...], np.ndarray]:
    """The header, and the start of every record: a quoted cell may contain line breaks."""
    csv.field_size_limit(LONGEST_LINE)
    offsets, at = array("q"), 0
    with open_regular(path) as file:

        def lines() -> Iterator[str]:
            nonlocal at
            for line in file:
                text = _text(line.removeprefix(BOM) if at == 0 else line, name)
                at += len(line)
                yield text

        reader = csv.reader(lines())
        try:
            header = tuple(next(reader, ()))
            if known is not None:
                return header, known
            start = at
            for record in reader:
                if record:  # a blank line is no record
                    offsets.append(start)
                start = at
        except csv.Error as error:
            raise UserError(f"data: '{name}' is not valid CSV: {error}") from error
    offsets.append(at)
    return header, np.frombuffer(offsets, dtype=np.int64)


def _text(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"data: '{name}' is not UTF-8 text ({error.reason})") from error


def _invalid_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number: write null")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _invalid_number(text[:20])


DECODER = json.JSONDecoder(parse_constant=_invalid_number, parse_float=_finite, parse_int=parse_int)
"""JSON that can also be written back to the run's folder: no NaN, no infinite or very long number."""


def parse_line(line: str, where: Any) -> Row:
    """A JSON object, without unpaired surrogates. `where()` names the line."""
    try:
        row = DECODER.decode(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{where()} is not JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise UserError(f"{where()} cannot be read: {reason}") from error
    if not isinstance(row, dict):
        raise UserError(f"{where()} is not a JSON object")
    if "\\ud" in line or "\\uD" in line:
        check_surrogates(row, where)
    return row


def check_surrogates(row: Row, where: Any) -> None:
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise UserError(f"{where()} contains an unpaired surrogate (half of a character): fix the text") from None
