"""The rows of a run, read from their source at every access, and the one pass over them at the start."""

import copy
import json
import multiprocessing
import os
import signal
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from typing import Any, ClassVar, Protocol, overload

import numpy as np

from vigneron.data.prompts import NumberedRow, Row, prompt_text
from vigneron.data.sources import SourceRows
from vigneron.errors import UserError

DIGEST = 16
"""Bytes of a row's hash."""
PARALLEL_FROM = 20_000_000
"""Bytes of a source from which it is read in several processes."""
RECORDED, RECORD_BYTES = 100_000, 4
"""The largest number of rows whose hashes a checkpoint keeps one by one, and how much of each."""
COUNTED = 10_000
"""The largest number of rows of which those with the same fault are counted."""
LONGEST = 2000
"""The number of longest rows that are tokenized at the start of a run; of fewer rows all are."""

_canonical = json.JSONEncoder(sort_keys=True).encode


class Reader(Protocol):
    """A row as the method reads it; None if it is left out. Raises at its place. `finish` is called after all rows."""

    def __call__(self, row: Row, place: str) -> Row | None: ...

    def add(self, later: Any) -> None:
        """Add the counts of a reader of later rows."""

    def finish(self, where: str) -> list[str]: ...


class MissingColumn(UserError):
    """A row lacks a column."""

    def __init__(self, message: str, column: str, fix: str = "") -> None:
        super().__init__(message + fix)
        self.message, self.column, self.fix = message, column, fix

    def __reduce__(self) -> tuple[Any, ...]:
        return MissingColumn, (self.message, self.column, self.fix)


class Subset(Sequence[Row]):
    """Some rows of others, by their indices."""

    def __init__(self, rows: Sequence[Row], indices: np.ndarray) -> None:
        self.rows, self.indices = rows, indices

    def __len__(self) -> int:
        return len(self.indices)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            return [self.rows[int(i)] for i in self.indices[index]]
        return self.rows[int(self.indices[index])]


@dataclass(eq=False)
class DataRows(Sequence[Row]):
    """Rows of a source as `read` makes them, without those that are left out."""

    source: SourceRows
    read: Callable[[Row, str], Row | None]
    kept: np.ndarray | None
    """Indices into the source; None: all."""
    record: str
    """What a checkpoint stores of them: see `record_of`."""
    longest: np.ndarray
    """The indices of the longest rows, ascending."""

    def __len__(self) -> int:
        return len(self.source) if self.kept is None else len(self.kept)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        self.source.check_unchanged()
        if isinstance(index, slice):
            return [self._row(i) for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return self._row(index % len(self))

    def __iter__(self) -> Iterator[Row]:
        self.source.check_unchanged()
        kept = None if self.kept is None else iter(self.kept.tolist())
        number, wanted = 0, None if kept is None else next(kept, None)
        for at, row in enumerate(self.source):
            if kept is not None:
                if at != wanted:
                    continue
                wanted = next(kept, None)
            number += 1
            yield self._read(row, at, number)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    def _row(self, index: int) -> Row:
        at = index if self.kept is None else int(self.kept[index])
        return self._read(self.source[at], at, index + 1)

    def _read(self, row: Row, at: int, number: int) -> Row:
        read = self.read(row, self.source.place(at))
        assert read is not None
        return NumberedRow(read, number)


def read_all(
    source: SourceRows,
    reader: Reader,
    *,
    measured: Sequence[str],
    distinct: bool = True,
    one_answer: bool = False,
    held_out: "HeldOutPrompts | None" = None,
) -> tuple[DataRows, list[str]]:
    """Read every row once: check it, hash it, measure its texts (of the columns `measured`). Returns the rows, without
    exact duplicates if `distinct`, and notices. `one_answer`: the same prompt with two answers is an error."""
    if not len(source):
        raise UserError(f"data: {source.name} has no rows")
    wanted = _Pass(source, reader, tuple(measured), one_answer, held_out)
    parts = list(_parallel(wanted)) if source.bytes > PARALLEL_FROM else [_pass(wanted, 0, len(source))]
    for part in parts:
        if isinstance(part.error, MissingColumn):
            raise _how_many(part.error, source, reader, part.last) from part.error
        if part.error is not None:
            raise part.error
        if part is not parts[0]:
            parts[0].reader.add(part.reader)
        if held_out is not None:
            held_out.both |= part.both
    reader = parts[0].reader
    kept, lengths, digests, prompts = (b"".join(getattr(p, name) for p in parts) for name in _Part.ARRAYS)
    del parts
    notices = reader.finish(source.name)
    indices = np.frombuffer(kept, dtype=np.int64)
    if one_answer:
        _refuse_two_answers(source, reader, indices, _as_digests(prompts))
    chosen = _firsts(_as_digests(digests)) if distinct else np.arange(len(indices))
    if repeats := len(indices) - len(chosen):
        notices.append(f"{source.name}: {repeats} duplicate rows are dropped")
    indices = indices[chosen]
    rows = DataRows(
        source,
        reader,
        None if len(indices) == len(source) else indices,
        record_of(_as_digests(digests)[chosen]),
        _longest(np.frombuffer(lengths, dtype=np.int64)[chosen]),
    )
    return rows, notices


@dataclass(frozen=True)
class _Pass:
    source: SourceRows
    reader: Reader
    measured: tuple[str, ...]
    one_answer: bool
    held_out: "HeldOutPrompts | None"


@dataclass
class _Part:
    """What a pass over some rows gives: arrays as bytes, one value or hash for each row that is kept."""

    ARRAYS: ClassVar = ("kept", "lengths", "digests", "prompts")
    reader: Reader
    kept: bytes = b""
    lengths: bytes = b""
    digests: bytes = b""
    prompts: bytes = b""
    both: frozenset[str] = frozenset()
    error: UserError | None = None
    last: int = 0
    """The row of the error."""


def _pass(wanted: _Pass, first: int, last: int) -> _Part:
    source, reader, held_out = wanted.source, copy.deepcopy(wanted.reader), wanted.held_out
    kept, lengths, digests, prompts, both = array("q"), array("q"), bytearray(), bytearray(), set[str]()
    at = first - 1
    try:
        for at, row in enumerate(source.between(first, last), start=first):
            read = reader(row, source.place(at))
            if read is None:
                continue
            kept.append(at)
            lengths.append(text_length(read, wanted.measured))
            digests += digest_of(read)
            if wanted.one_answer or held_out is not None:
                key = _prompt_key(read)
                if wanted.one_answer:
                    prompts += _digest(key)
                if held_out is not None and key in held_out.prompts:
                    both.add(key)
    except UserError as error:
        return _Part(reader, error=error, last=at)
    return _Part(reader, kept.tobytes(), lengths.tobytes(), bytes(digests), bytes(prompts), frozenset(both))


def _parallel(wanted: _Pass) -> Iterator[_Part]:
    """The pass in one process for each CPU, which are forked: they start at once, and share the index."""
    count = len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1
    bounds = [len(wanted.source) * number // count for number in range(count + 1)]
    ranges = list(pairwise(bounds))
    if count == 1:
        yield _pass(wanted, *ranges[0])
        return
    context = multiprocessing.get_context("fork")
    running = []
    for first, last in ranges:
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=_send_pass, args=(there, wanted, first, last), daemon=True)
        process.start()
        there.close()
        running.append((process, here))
    try:
        for (process, here), (first, last) in zip(running, ranges, strict=True):
            try:
                part = here.recv()
            except EOFError:  # it was killed, as by lack of memory
                part = _pass(wanted, first, last)
            process.join()
            yield part
    finally:
        for process, here in running:
            process.kill()
            here.close()


def _send_pass(there: Any, wanted: _Pass, first: int, last: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    there.send(_pass(wanted, first, last))


def read_list(rows: Sequence[Row], reader: Reader, where: str) -> tuple[list[Row], list[str]]:
    """The same for a few rows in memory: those that are not left out, and notices."""
    if not rows:
        raise UserError(f"data: {where} has no rows")
    read = [reader(row, f"{where}, row {number}") for number, row in enumerate(rows, start=1)]
    return [row for row in read if row is not None], reader.finish(where)


class HeldOutPrompts:
    """The held-out prompts, and those of them that are in the training data too."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.prompts: dict[str, int] = {}
        for number, row in enumerate(rows, start=1):
            self.prompts.setdefault(_prompt_key(row), number)
        self.rows, self.both = rows, set[str]()

    def notices(self) -> list[str]:
        both = [(number, row) for number, row in enumerate(self.rows, start=1) if _prompt_key(row) in self.both]
        if not both:
            return []
        number, row = both[0]
        return [
            f"{len(both)} of {len(self.rows)} prompts of `held_out` are also in `train`, the first in row {number}: "
            f"{prompt_text(row['prompt'])[:60]!r}; held-out metrics do not measure generalization on them"
        ]


def _prompt_key(row: Row) -> str:
    prompt = row.get("prompt")
    return f'"{prompt}' if isinstance(prompt, str) else _canonical(prompt)


def digest_of(row: Row) -> bytes:
    return _digest(_canonical(row))


def record_of(digests: np.ndarray) -> str:
    """A short hash of each row, by which changed rows are found; of many rows one hash."""
    if len(digests) <= RECORDED:
        return "".join(row[:RECORD_BYTES].tobytes().hex() for row in digests)
    return f"{len(digests)} rows, sha256 {sha256(digests.tobytes()).hexdigest()}"


def record_of_rows(rows: Sequence[Row]) -> str:
    return rows.record if isinstance(rows, DataRows) else record_of(_as_digests(b"".join(map(digest_of, rows))))


def longest_of(rows: Sequence[Row], measured: Sequence[str]) -> np.ndarray:
    """The indices of the longest rows, ascending."""
    if isinstance(rows, DataRows):
        return rows.longest
    return _longest(np.array([text_length(row, measured) for row in rows], dtype=np.int64))


def text_length(row: Row, columns: Sequence[str]) -> int:
    """The number of characters of some columns; a message counts as a few more, for what a template adds."""
    total = 0
    for column in columns:
        value = row.get(column)
        if isinstance(value, str):
            total += len(value)
        elif isinstance(value, list):
            texts = (part.get("content") if isinstance(part, dict) else part for part in value)
            total += sum(16 + len(text if isinstance(text, str) else str(text)) for text in texts)
    return total


def _digest(text: str) -> bytes:
    return sha256(text.encode()).digest()[:DIGEST]


def _as_digests(data: bytes | bytearray) -> np.ndarray:
    return np.frombuffer(data, dtype=np.uint8).reshape(-1, DIGEST)


def _longest(lengths: np.ndarray) -> np.ndarray:
    return np.sort(np.argsort(-lengths, kind="stable")[:LONGEST])


def _groups(digests: np.ndarray) -> Iterator[tuple[int, int]]:
    """(index, index of the first with the same hash) of all that are not the first."""
    short = np.ascontiguousarray(digests[:, :8]).view(np.uint64).ravel()
    _, inverse, counts = np.unique(short, return_inverse=True, return_counts=True)
    first: dict[bytes, int] = {}
    for at in np.flatnonzero(counts[inverse] > 1).tolist():
        before = first.setdefault(digests[at].tobytes(), at)
        if before != at:
            yield at, before


def _firsts(digests: np.ndarray) -> np.ndarray:
    """The indices of rows without later duplicates."""
    keep = np.ones(len(digests), dtype=bool)
    for at, _ in _groups(digests):
        keep[at] = False
    return np.flatnonzero(keep)


def _refuse_two_answers(source: SourceRows, reader: Reader, indices: np.ndarray, prompts: np.ndarray) -> None:
    def answer(at: int) -> Any:
        place = int(indices[at])
        return (reader(source[place], source.place(place)) or {}).get("answer")

    conflicts = [(before, at) for at, before in _groups(prompts) if answer(at) != answer(before)]
    if conflicts:
        before, at = (source.place(int(indices[i])) for i in conflicts[0])
        more = f" ({len(conflicts)} such rows in total)" if len(conflicts) > 1 else ""
        both = (
            f"{before.replace(', row ', ', rows ')} and {at.rpartition('row ')[2]}"
            if _same_file(before, at)
            else (f"{before} and {at}")
        )
        raise UserError(f"data: {both} have the same prompt and different answers{more}: keep one")


def _same_file(one: str, other: str) -> bool:
    return one.rpartition(", row ")[0] == other.rpartition(", row ")[0]


def _how_many(error: MissingColumn, source: SourceRows, reader: Reader, at: int) -> UserError:
    """The error, with the number of rows that lack the column too, of a file that is read in a moment."""
    more = 0
    last = len(source) if len(source) <= COUNTED else at + 1
    for later, row in enumerate(source.between(at + 1, last), start=at + 1):
        try:
            reader(row, source.place(later))
        except MissingColumn as other:
            more += other.column == error.column
        except UserError:
            continue
    others = f", nor do {more} other rows" if more else ""
    return UserError(f"{error.message}{others}{error.fix}")
