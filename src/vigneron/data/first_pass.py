"""The pass over all rows at the start of a run: each is checked, hashed and measured.

A large source is read by several processes, which write into memory that they share.
"""

import copy
import ctypes
import mmap
import multiprocessing
import signal
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any, Protocol

import numpy as np

from vigneron.data.digests import DIGEST, digest_of, digest_of_line, prompt_digest, record_of, repeated
from vigneron.data.held_out_prompts import HeldOutPrompts
from vigneron.data.prompts import Row
from vigneron.data.rows import DataRows, Place, longest_by, text_length
from vigneron.data.sources import SourceRows
from vigneron.errors import UserError
from vigneron.threads import cores

PARALLEL_FROM = 20_000_000
"""Bytes of a source from which it is read in several processes."""
MOST_PROCESSES = 8
COUNTED = 10_000
"""The largest number of rows of which those with the same fault are counted."""
WRITTEN = 10_000
"""Rows whose results are written together."""
NO_DIGEST = bytes(DIGEST)
PR_SET_PDEATHSIG = 1
"""Of Linux."""


class Reader(Protocol):
    """A row as the method reads it; None if it is left out. Raises at its place, which has the form of a text.
    `finish` is called after all rows."""

    def __call__(self, row: Row, place: object) -> Row | None: ...

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


def read_all(
    source: SourceRows,
    reader: Reader,
    *,
    measured: Sequence[str],
    distinct: bool = True,
    one_answer: bool = False,
    held_out: HeldOutPrompts | None = None,
    hash_lines: bool = False,
) -> tuple[DataRows, list[str]]:
    """Read every row once: check it, hash it, measure its texts (of the columns `measured`). Returns the rows, without
    exact duplicates if `distinct`, and notices. `one_answer`: the same prompt with two answers is an error.
    `hash_lines`: rows of a file of lines are equal if their lines are, which is faster to find out."""
    if not len(source):
        raise UserError(f"data: {source.name} has no rows")
    job = _Job(source, reader, tuple(measured), one_answer, held_out, hash_lines, _Results.of(len(source), one_answer))
    count = _processes() if source.size > PARALLEL_FROM else 1
    found: _Part | None = None
    for part in [_pass(job, 0, len(source))] if count == 1 else _in_processes(job, count):
        if isinstance(part.error, MissingColumn):
            rest = zip(_places(source, part.last + 1), source.between(part.last + 1, len(source)), strict=False)
            raise with_count(part.error, rest if len(source) <= COUNTED else (), reader) from part.error
        if part.error is not None:
            raise part.error
        if found is not None:
            found.reader.add(part.reader)
        found = found or part
        if held_out is not None:
            held_out.both |= part.both
    assert found is not None
    reader, results = found.reader, job.results
    notices = reader.finish(source.name)
    if one_answer:
        _refuse_two_answers(source, reader, repeated(results.prompts, results.kept))
    if distinct and (repeats := repeated(results.digests, results.kept)):
        notices.append(f"{source.name}: {len(repeats)} duplicate rows are dropped")
        results.kept[[at for at, _ in repeats]] = False
    kept = None if results.kept.all() else np.flatnonzero(results.kept)
    longest = longest_by(results.lengths if kept is None else results.lengths[kept])
    return DataRows(source, reader, kept, record_of(results.digests, kept), longest), notices


@dataclass(frozen=True)
class _Results:
    """What the pass finds about each row of the source. The memory is shared with forked processes."""

    kept: np.ndarray
    lengths: np.ndarray
    digests: np.ndarray
    prompts: np.ndarray
    """Hashes of the prompts, if they are compared."""

    @classmethod
    def of(cls, rows: int, prompts: bool) -> "_Results":
        def shared(kind: Any, *shape: int) -> np.ndarray:
            size = max(1, int(np.prod(shape)) * np.dtype(kind).itemsize)
            return np.frombuffer(mmap.mmap(-1, size), dtype=kind, count=int(np.prod(shape))).reshape(shape)

        return cls(
            shared(np.bool_, rows),
            shared(np.int32, rows),
            shared(np.uint8, rows, DIGEST),
            shared(np.uint8, rows if prompts else 0, DIGEST),
        )


@dataclass(frozen=True)
class _Job:
    source: SourceRows
    reader: Reader
    measured: tuple[str, ...]
    one_answer: bool
    held_out: HeldOutPrompts | None
    hash_lines: bool
    results: _Results


@dataclass(frozen=True)
class _Part:
    """What a process sends back; the rest is in the memory that is shared."""

    reader: Reader
    both: frozenset[bytes] = frozenset()
    error: UserError | None = None
    last: int = 0
    """The row of the error."""


def _pass(job: _Job, first: int, last: int) -> _Part:
    reader, place, both = copy.deepcopy(job.reader), Place(job.source, first), set[bytes]()
    rows = job.source.with_lines(first, last)
    try:
        for begin in range(first, last, WRITTEN):
            _read_some(job, reader, islice(rows, WRITTEN), place, begin, both)
    except UserError as error:
        return _Part(reader, error=error, last=place.at)
    return _Part(reader, frozenset(both))


def _read_some(
    job: _Job,
    reader: Reader,
    rows: Iterable[tuple[Row, bytes | None]],
    place: Place,
    begin: int,
    both: set[bytes],
) -> None:
    kept, lengths, digests, prompts = bytearray(), array("q"), bytearray(), bytearray()
    measured, hash_lines, held_out = job.measured, job.hash_lines, job.held_out
    compares = job.one_answer or held_out is not None
    for at, (row, line) in enumerate(rows, start=begin):
        place.at = at
        read = reader(row, place)
        kept.append(read is not None)
        if read is None:
            lengths.append(0)
            digests += NO_DIGEST
            prompts += NO_DIGEST
            continue
        lengths.append(text_length(read, measured))
        digests += digest_of_line(line) if hash_lines and line is not None else digest_of(read)
        if compares:
            prompt = prompt_digest(read)
            prompts += prompt
            if held_out is not None and prompt in held_out.prompts:
                both.add(prompt)
    results, end = job.results, begin + len(kept)
    results.kept[begin:end] = np.frombuffer(kept, dtype=np.bool_)
    results.lengths[begin:end] = np.minimum(lengths, np.iinfo(np.int32).max)
    results.digests[begin:end] = np.frombuffer(digests, dtype=np.uint8).reshape(-1, DIGEST)
    if job.one_answer:
        results.prompts[begin:end] = np.frombuffer(prompts, dtype=np.uint8).reshape(-1, DIGEST)


def _processes() -> int:
    """Processes are forked: they start quickly, and share the index."""
    return min(MOST_PROCESSES, cores()) if sys.platform == "linux" else 1


def _in_processes(job: _Job, count: int) -> Iterator[_Part]:
    """The pass by several processes, in the order of the rows. Those that still run are ended with the iteration."""
    ranges = list(pairwise(len(job.source) * number // count for number in range(count + 1)))
    context = multiprocessing.get_context("fork")
    running = []
    try:
        for first, last in ranges:
            here, there = context.Pipe(duplex=False)
            process = context.Process(target=_send_pass, args=(there, job, first, last), daemon=True)
            process.start()
            there.close()
            running.append((process, here))
        for (process, here), (first, last) in zip(running, ranges, strict=True):
            try:
                part = here.recv()
            except EOFError:  # it was killed, as by lack of memory
                part = _pass(job, first, last)
            process.join()
            yield part
    finally:
        for process, here in running:
            process.kill()
            process.join()
            here.close()


def _send_pass(there: Any, job: _Job, first: int, last: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # with a run that is killed, its readers end too
    there.send(_pass(job, first, last))


def read_list(rows: Sequence[Row], reader: Reader, where: str) -> tuple[list[Row], list[str]]:
    """The same for a few rows in memory: those that are not left out, and notices."""
    if not rows:
        raise UserError(f"data: {where} has no rows")
    numbered = iter([(f"{where}, row {number}", row) for number, row in enumerate(rows, start=1)])
    try:
        read = [reader(row, place) for place, row in numbered]
    except MissingColumn as error:
        raise with_count(error, numbered, reader) from error
    return [row for row in read if row is not None], reader.finish(where)


def with_count(error: MissingColumn, later: Iterable[tuple[object, Row]], reader: Reader) -> UserError:
    """The error, with the number of later rows that lack the column too."""
    more = 0
    for place, row in later:
        try:
            reader(row, place)
        except MissingColumn as other:
            more += other.column == error.column
        except UserError:
            continue
    others = f", nor {'does 1 other row' if more == 1 else f'do {more} other rows'}" if more else ""
    return UserError(f"{error.message}{others}{error.fix}")


def _places(source: SourceRows, first: int) -> Iterator[Place]:
    return (Place(source, at) for at in range(first, len(source)))


def _refuse_two_answers(source: SourceRows, reader: Reader, repeats: Sequence[tuple[int, int]]) -> None:
    def answer(at: int) -> Any:
        return (reader(source[at], Place(source, at)) or {}).get("answer")

    conflicts = [(before, at) for at, before in repeats if answer(at) != answer(before)]
    if conflicts:
        before, at = (source.place(index) for index in conflicts[0])
        more = f" ({len(conflicts)} such rows in total)" if len(conflicts) > 1 else ""
        both = (
            f"{before.replace(', row ', ', rows ')} and {at.rpartition('row ')[2]}"
            if _same_file(before, at)
            else (f"{before} and {at}")
        )
        raise UserError(f"data: {both} have the same prompt and different answers{more}: keep one")


def _same_file(one: str, other: str) -> bool:
    return one.rpartition(", row ")[0] == other.rpartition(", row ")[0]
