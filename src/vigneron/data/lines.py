"""Files of text as rows: JSON Lines, CSV and TSV. An index of offsets is kept in memory, the rows stay in the file."""

import csv
import io
import json
import math
import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np

from vigneron.errors import UserError
from vigneron.files import open_regular, parse_int, regular_opener

Row = dict[str, Any]

DELIMITERS = {".csv": ",", ".tsv": "\t"}

LONGEST_LINE = 10_000_000
BOM = b"\xef\xbb\xbf"
BLOCK = 2**22
"""Bytes that are read together."""
FIRST_OF_BLANK = np.frombuffer(b" \t\v\f\r\n" + BOM[:1], dtype=np.uint8)
"""Bytes that a blank line can begin with."""
NEWLINE = 10


@dataclass
class LineRows:
    """The rows of a .jsonl, .csv or .tsv file, read from the file at every access."""

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
            if path.suffix in DELIMITERS:
                header, offsets = _csv_index(path, name, offsets)
                return cls(path, name, offsets, header)
            return cls(path, name, _jsonl_index(path, name) if offsets is None else offsets)
        except OSError as error:
            raise UserError(f"data: cannot read '{name}': {error.strerror}") from error

    @property
    def size(self) -> int:
        """In bytes."""
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
        return parse_line(self._decoded(data.removeprefix(BOM), index), lambda: self._line(index))

    def __iter__(self) -> Iterator[Row]:
        return self.between(0, len(self))

    def between(self, first: int, last: int) -> Iterator[Row]:
        """Rows first … last − 1, read in large pieces."""
        return (row for row, _ in self.with_lines(first, last))

    def with_lines(self, first: int, last: int) -> Iterator[tuple[Row, bytes]]:
        """Rows first … last − 1, each with its line of the file, or its lines."""
        if self.header is not None:
            for index, data in enumerate(self._pieces(first, last), start=first):
                yield self._csv_row(_text(data, self.name), index), data.rstrip(b"\r\n")
            return
        decode = DECODER.raw_decode
        for index, data in enumerate(self._pieces(first, last), start=first):
            text = self._decoded(data, index)
            try:
                row, end = decode(text)
            except (ValueError, RecursionError):
                row, end = None, 0
            if type(row) is not dict or (end != len(text) and text[end:] != "\r") or _may_have_surrogates(text):
                row = parse_line(text, lambda index=index: self._line(index))  # slower, with errors in words
            yield row, data

    def _pieces(self, first: int, last: int) -> Iterator[bytes]:
        """The bytes of rows, of JSON without the line's end."""
        try:
            with open_regular(self.path) as file:
                while first < last:
                    begin = int(self.offsets[first])
                    until = int(np.searchsorted(self.offsets, begin + BLOCK, side="right")) - 1
                    until = min(max(until, first + 1), last)
                    file.seek(begin)
                    data = file.read(int(self.offsets[until]) - begin)
                    if len(data) != self.offsets[until] - begin:
                        raise UserError(f"data: '{self.name}' changed while the run was reading it: restore it")
                    yield from self._split(data, first, until)
                    first = until
        except OSError as error:
            raise UserError(f"data: cannot read '{self.name}': {error.strerror}") from error

    def _split(self, data: bytes, first: int, last: int) -> Sequence[bytes]:
        if self.header is None:
            lines = (data.removeprefix(BOM) if first == 0 else data).split(b"\n")
            lines = [line for line in lines if line and not line.isspace()]
            if len(lines) == last - first:
                return lines
        cuts = (self.offsets[first : last + 1] - self.offsets[first]).tolist()
        rows = [data[start:stop].removeprefix(BOM) for start, stop in pairwise(cuts)]
        return rows if self.header is not None else [row.split(b"\n", 1)[0] for row in rows]

    def place(self, index: int) -> str:
        return f"'{self.name}', row {index + 1}"

    def _decoded(self, data: bytes, index: int) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise UserError(f"{self._line(index)} is not UTF-8 text ({error.reason})") from error

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
            fields = next(csv.reader(io.StringIO(text, newline=""), delimiter=DELIMITERS[self.path.suffix]), [])
        except csv.Error as error:
            raise UserError(f"data: '{self.name}' is not valid CSV: {error}") from error
        if len(fields) > len(self.header):
            raise UserError(f"{place} has more fields than its header: {fields[len(self.header) :]}")
        return dict(zip(self.header, [*fields, *[None] * (len(self.header) - len(fields))], strict=True))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_handle": None}

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # `os` may be gone at the interpreter's end
        if (handle := getattr(self, "_handle", None)) is not None:
            close(handle)


def _jsonl_index(path: Path, name: str) -> np.ndarray:
    """The start of every line that is not blank, and the end of the file."""
    starts, firsts, size, before = array("q"), bytearray(), 0, NEWLINE
    with open_regular(path) as file:
        while block := file.read(4 * BLOCK):
            data = np.frombuffer(block, dtype=np.uint8)
            begins = np.flatnonzero(data[:-1] == NEWLINE) + 1
            if before == NEWLINE:
                begins = np.insert(begins, 0, 0)
            firsts += data[begins].tobytes()
            starts.frombytes((begins + size).tobytes())
            size, before = size + len(block), block[-1]
        starts.append(size)
        ends, keep = np.frombuffer(starts, dtype=np.int64), np.ones(len(starts), dtype=bool)
        for line in np.flatnonzero(np.isin(np.frombuffer(firsts, dtype=np.uint8), FIRST_OF_BLANK)).tolist():
            content = _line_at(file, ends, line).strip()
            keep[line] = bool(content) and content != BOM
        for line in np.flatnonzero(np.diff(ends) > LONGEST_LINE).tolist():
            if len(_line_at(file, ends, line).decode("utf-8", errors="replace")) > LONGEST_LINE:
                raise UserError(f"data: '{name}', line {line + 1} is longer than {LONGEST_LINE} characters")
    return ends if keep.all() else ends[keep]


def _line_at(file: IO[bytes], ends: np.ndarray, line: int) -> bytes:
    file.seek(int(ends[line]))
    return file.read(min(int(ends[line + 1] - ends[line]), 4 * LONGEST_LINE + 4))


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

        delimiter = DELIMITERS[path.suffix]
        reader = csv.reader(lines(), delimiter=delimiter)
        try:
            header = tuple(next(reader, ()))
            if not header and at:
                raise UserError(f"data: '{name}', line 1 is blank: the first line must name the columns")
            if known is not None:
                return header, known
            _check_header(header, delimiter, f"data: '{name}', line 1")
            start = at
            for record in reader:
                if record:  # a blank line is no record
                    offsets.append(start)
                start = at
        except csv.Error as error:
            raise UserError(f"data: '{name}' is not valid CSV: {error}") from error
        if offsets:
            file.seek(offsets[-1])
            _check_closed(_text(file.read(), name), delimiter, f"data: '{name}', row {len(offsets)}")
    offsets.append(at)
    return header, np.frombuffer(offsets, dtype=np.int64)


def _check_header(header: tuple[str, ...], delimiter: str, where: str) -> None:
    twice = [name for at, name in enumerate(header) if name in header[:at]]
    if twice:
        raise UserError(f"{where} names the column '{twice[0]}' twice: rename one")
    if len(header) == 1:
        other = next((mark for mark in ";\t|," if mark != delimiter and mark in header[0]), None)
        if other is not None:
            separator = "a tab" if other == "\t" else f"'{other}'"
            fix = "name it .tsv" if other == "\t" else "name it .csv" if other == "," else "separate them by ','"
            raise UserError(f"{where} separates its columns by {separator}: {fix}")


def _check_closed(record: str, delimiter: str, where: str) -> None:
    """The last record: an open quote takes all that follows for its cell."""
    try:
        next(csv.reader(io.StringIO(record, newline=""), delimiter=delimiter, strict=True), None)
    except csv.Error as error:
        if "end of data" in str(error):
            raise UserError(f"{where}: a quote is opened and never closed: close it, or double it") from None


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


def _line_hint(line: str) -> str:
    """What the file may be, by a line that is not JSON."""
    start = line.strip()
    if start in ("{", "[", "[{"):
        return ": a .jsonl file has one whole object on each line; a .json file may be a list of objects"
    if start and start[0] not in '{["' and "," in start:
        return ": if this is CSV, name it .csv"
    return ""


def parse_line(line: str, where: Any) -> Row:
    """A JSON object, without unpaired surrogates. `where()` names the line."""
    try:
        row = DECODER.decode(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{where()} is not JSON: {error.msg}{_line_hint(line)}") from error
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise UserError(f"{where()} cannot be read: {reason}") from error
    if not isinstance(row, dict):
        raise UserError(f"{where()} is not a JSON object")
    if _may_have_surrogates(line):
        check_surrogates(row, where)
    return row


def _may_have_surrogates(line: str) -> bool:
    return "\\u" in line and ("\\ud" in line or "\\uD" in line)


def check_surrogates(row: Row, where: Any) -> None:
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise UserError(f"{where()} contains an unpaired surrogate (half of a character): fix the text") from None
