"""Files of text as rows: JSON Lines, CSV and TSV. An index of offsets is kept in memory, the rows stay in the file."""

import codecs
import csv
import io
import json
import math
import os
import shlex
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
OTHER_MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
"""Byte-order marks of other encodings. That of UTF-32 begins with that of UTF-16."""
BLOCK = 2**22
"""Bytes that are read together."""
FIRST_OF_BLANK = np.frombuffer(b" \t\v\f\r\n" + BOM[:1], dtype=np.uint8)
"""Bytes that a blank line can begin with."""
NEWLINE = 10
QUOTING = 'a cell that begins with a quote is written in quotes, each of its own twice: """Yes"" she said"'


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
            if offsets is None:
                with open_regular(path) as file:
                    check_encoding(file.read(4), name)
            if path.suffix.lower() in DELIMITERS:
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
            return self._csv_row(data.removeprefix(BOM), index)
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
                yield self._csv_row(data, index), data.rstrip(b"\r\n")
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

    def _csv_row(self, data: bytes, index: int) -> Row:
        assert self.header is not None
        place = f"data: '{self.name}', row {index + 1}"
        text, delimiter = _text(data, place), DELIMITERS[self.path.suffix.lower()]
        csv.field_size_limit(LONGEST_LINE)
        try:
            fields = next(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter), [])
        except csv.Error as error:
            raise UserError(f"data: '{self.name}' is not valid CSV: {error}") from error
        if len(fields) > len(self.header):
            spaced = any(field.startswith(' "') for field in fields)
            fix = "; write no space before a quote" if spaced else ""
            raise UserError(f"{place} has more fields than its header: {fields[len(self.header) :]}{fix}")
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
    delimiter = DELIMITERS[path.suffix.lower()]
    with open_regular(path) as file:

        def lines() -> Iterator[str]:
            nonlocal at
            for line in file:
                text = (line.removeprefix(BOM) if at == 0 else line).decode()
                at += len(line)
                yield text

        reader, line = csv.reader(lines(), delimiter=delimiter, strict=True), 0
        try:
            header = _without_spaces(tuple(next(reader, ())))
            if not header and at:
                raise UserError(f"data: '{name}', line 1 is blank: the first line must name the columns")
            if known is not None:
                return header, known
            _check_header(header, delimiter, f"data: '{name}', line 1")
            start, line = at, reader.line_num
            for record in reader:
                if record:  # a blank line is no record
                    offsets.append(start)
                if delimiter == "\t" and reader.line_num > line + 1:
                    _check_tabs(record, len(header) - 1, f"data: '{name}', {_lines(line + 1, reader.line_num)}")
                start, line = at, reader.line_num
        except UnicodeDecodeError as error:
            where = f"row {len(offsets) + 1}" if line else "line 1"
            raise UserError(f"data: '{name}', {where} is not UTF-8 text ({error.reason})") from error
        except csv.Error as error:
            file.seek(0)
            has_newlines = b"\n" in file.read(BLOCK)
            where = f"data: '{name}', {_lines(line + 1, reader.line_num)}"
            raise UserError(_csv_fault(str(error), where, name, has_newlines)) from error
    offsets.append(at)
    return header, np.frombuffer(offsets, dtype=np.int64)


def _lines(first: int, last: int) -> str:
    return f"line {first}" if first == last else f"lines {first} to {last}"


def _without_spaces(header: tuple[str, ...]) -> tuple[str, ...]:
    """The names of the columns without the spaces around them, if they are still different."""
    names = tuple(name.strip() for name in header)
    return names if len(set(names)) == len(names) else header


def _check_tabs(record: Sequence[str], tabs: int, where: str) -> None:
    """A record of several lines: if each of them is a row by its number of tabs, a stray quote has joined them."""
    if any("\t" in cell for cell in record) and all(
        line.count("\t") == tabs for line in "\t".join(record).split("\n") if line.strip()
    ):
        raise UserError(f"{where} are one cell, from a quote to the next one, and each looks like a row: {QUOTING}")


def _csv_fault(error: str, where: str, name: str, has_newlines: bool) -> str:
    """An error of Python's reader in plain words."""
    if "expected after" in error:
        return f"{where}: text follows the closing quote of a cell: {QUOTING}"
    if "end of data" in error:
        return f"{where}: a quote is opened and never closed: close it, or double it"
    if "new-line character" in error and not has_newlines:
        fix = f"tr '\\r' '\\n' < {shlex.quote(name)} > NEW"
        return f"data: '{name}' ends its lines as old Macs did, by a carriage return alone: convert it with `{fix}`"
    if "new-line character" in error:
        return f"{where}: a carriage return stands outside of quotes: quote the cell, or remove it"
    if "field limit" in error:
        return f"{where}: a cell is longer than {LONGEST_LINE} characters; is a quote opened and never closed?"
    return f"{where} is not valid CSV: {error}"


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


def _text(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{where} is not UTF-8 text ({error.reason})") from error


def check_encoding(first: bytes, name: str) -> None:
    """Raise for a file whose first bytes are the mark of another encoding than UTF-8."""
    for mark, encoding in OTHER_MARKS.items():
        if first.startswith(mark):
            read = f"gzip -dc {shlex.quote(name)}" if name.lower().endswith(".gz") else f"cat {shlex.quote(name)}"
            command = f"{read} | iconv -f {encoding} -t UTF-8 > NEW"
            raise UserError(f"data: '{name}' is {encoding} text, by its byte-order mark: convert it with `{command}`")


def _invalid_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number: write null")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _invalid_number(text[:20])


DECODER = json.JSONDecoder(parse_constant=_invalid_number, parse_float=_finite, parse_int=parse_int)
"""JSON that can also be written back to the run's folder: no NaN, no infinite or very long number."""


def _what_follows(text: str, *, after_return: bool) -> str:
    """What to do about a text that follows a line's object; `after_return`: after a carriage return."""
    if text.startswith(","):
        return ": a comma follows the object: remove it, or name a list of objects .json"
    if text.startswith("{") and after_return:
        return ": the lines end as old Macs ended them, by a carriage return alone: end them with a newline"
    if text.startswith("{"):
        return ": a second object follows in the line: write one object on each line"
    return f": {text.rstrip()!r} follows the object: remove it"


def _line_hint(line: str, error: json.JSONDecodeError) -> str:
    """What the file may be, or what to do, by a line that is not JSON."""
    start = line.strip()
    if start.startswith("{") and error.msg == "Extra data":
        return _what_follows(line[error.pos : error.pos + 20], after_return=line[error.pos - 1] == "\r")
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
        raise UserError(f"{where()} is not JSON: {error.msg}{_line_hint(line, error)}") from error
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
