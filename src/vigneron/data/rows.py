"""The rows of a run, read from their source at every access."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np

from vigneron.data.digests import as_digests, digest_of, record_of
from vigneron.data.prompts import NumberedRow, Row
from vigneron.data.sources import SourceRows

LONGEST = 2000
"""The number of longest rows that are tokenized at the start of a run; of fewer rows all are."""


class Place:
    """The place of a source's row in messages. It is written out only where a message is."""

    __slots__ = ("at", "source")

    def __init__(self, source: SourceRows, at: int = 0) -> None:
        self.source, self.at = source, at

    def __str__(self) -> str:
        return self.source.place(self.at)


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
    read: Callable[[Row, object], Row | None]
    kept: np.ndarray | None
    """Indices into the source; None: all."""
    record: str
    """What a checkpoint stores of them: see `record_of`."""
    longest: np.ndarray
    """The indices of the longest rows, ascending."""
    origin: "DataRows | None" = None
    """The rows that these are a copy of: errors name their files."""

    def __len__(self) -> int:
        return len(self.source) if self.kept is None else len(self.kept)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
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
        self.source.check_unchanged(at)
        return self._read(self.source[at], at, index + 1)

    def _read(self, row: Row, at: int, number: int) -> Row:
        place = Place(self.source, at)
        read = self.read(row, place)
        assert read is not None
        return NumberedRow(read, number, place if self.origin is None else self.origin.place_of(number - 1))

    def place_of(self, index: int) -> Place:
        return Place(self.source, index if self.kept is None else int(self.kept[index]))


def record_of_rows(rows: Sequence[Row]) -> str:
    return rows.record if isinstance(rows, DataRows) else record_of(as_digests(b"".join(map(digest_of, rows))))


def longest_of(rows: Sequence[Row], measured: Sequence[str]) -> np.ndarray:
    """The indices of the longest rows, ascending."""
    if isinstance(rows, DataRows):
        return rows.longest
    return longest_by(np.array([text_length(row, measured) for row in rows], dtype=np.int64))


def longest_by(lengths: np.ndarray) -> np.ndarray:
    """The indices of the largest lengths, ascending."""
    if len(lengths) <= LONGEST:
        return np.arange(len(lengths))
    least = np.partition(lengths, -LONGEST)[-LONGEST]
    above = np.flatnonzero(lengths > least)
    return np.sort(np.concatenate([above, np.flatnonzero(lengths == least)[: LONGEST - len(above)]]))


def text_length(row: Row, columns: Sequence[str]) -> int:
    """The number of characters of some columns; a message counts as a few more, for what a template adds."""
    total = 0
    for column in columns:
        value = row.get(column)
        if isinstance(value, str):
            total += len(value)
        elif isinstance(value, list):
            total += 16 * len(value)
            for part in value:
                text = part.get("content") if isinstance(part, dict) else part
                total += len(text) if isinstance(text, str) else len(str(text))
    return total
