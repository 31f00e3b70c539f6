"""The rows that a run's folder keeps: a copy, or of a large source its path, size and hash.

data/train.jsonl         the rows as the run reads them
data/train.source.json   instead, for a large source: where its rows are, and the first ones
data/train.index.npz     and which of them, so that a resume need not read them all
"""

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from typing import Any, NoReturn, overload

import numpy as np

from vigneron.config import Config
from vigneron.data.lines import LineRows
from vigneron.data.prompts import Row
from vigneron.data.rows import DataRows, longest_of, record_of_rows
from vigneron.data.sources import FileStamp, SourceRows, SourceSpec, open_source, spec_dict
from vigneron.errors import UserError
from vigneron.files import parse_json, read_regular, sha256_of, write_atomically, write_pieces
from vigneron.run_data.load import Data, load_saved_rows, read_source
from vigneron.run_data.readers import measured_columns, reader_of
from vigneron.timing import phase

PARTS = ("train", "held_out")
PIECES, PIECE = 256, 4096
"""Of a file, which are compared between nodes: how many, and their bytes."""
FIRST, FIRST_CHARACTERS = 16, 1_000_000
"""The first rows of a large source that are kept: how many at most, and their length as JSON."""


class LostRows(Sequence[Row]):
    """Rows of a source that is gone or has changed: their number and the first of them are known, and reading one
    raises the reason."""

    def __init__(self, count: int, reason: str, first: Sequence[Row] = ()) -> None:
        self.number, self.reason, self.first = count, reason, first

    def __len__(self) -> int:
        return self.number

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> NoReturn:
        raise UserError(self.reason)


def store_data(folder: Path, config: Config, data: Data) -> Data:
    """Write both parts into a run's folder. Returns the data as it is read from there."""
    folder.mkdir(exist_ok=True)
    train, held_out = (_store(folder, config, part, getattr(data, part)) for part in PARTS)
    return replace(data, train=train, held_out=held_out)


def open_data(folder: Path, config: Config) -> Data:
    """The rows of a run's folder, checked where they are copies, which may have been edited."""
    train, held_out = (_open(folder, config, part) for part in PARTS)
    return Data(train, held_out)


def first_rows(data: Data, parts: Sequence[str], count: int = FIRST) -> Sequence[Row]:
    """The first rows of the first of these parts that has any, at most 16. They are known of a lost source too."""
    sequences: list[Sequence[Row]] = [getattr(data, part) for part in parts]
    for rows in sequences:
        if first := (rows.first if isinstance(rows, LostRows) else rows)[:count]:
            return first
    raise UserError(next(rows.reason for rows in sequences if isinstance(rows, LostRows)))


def files_for_ranks(folder: Path) -> dict[str, bytes]:
    """What other ranks need to read the rows, by name. On other nodes files may be copies, which have other times: they
    are compared by size and by a sample of their bytes."""
    names = [f"{part}.{kind}" for part in PARTS for kind in ("jsonl", "index.npz")]
    files = {name: (folder / name).read_bytes() for name in names if (folder / name).is_file()}
    for part in PARTS:
        if (folder / f"{part}.source.json").is_file():
            reference = _reference(folder, part)
            for file in reference["files"]:
                file |= {"changed": None, "sample": _sample(file["path"])}
            files[f"{part}.source.json"] = json.dumps(reference).encode()
    return files


def open_rank_data(folder: Path, config: Config) -> Data:
    """The rows on another rank than 0, from the files for it. Raises if a source differs from rank 0's."""
    data = open_data(folder, config)
    for rows in (data.train, data.held_out):
        if isinstance(rows, LostRows):
            raise UserError(rows.reason)
    return data


def read_changed(folder: Path, config: Config, data: Data) -> Data:
    """The data with lost rows read anew from their source, as it is now."""
    for part in PARTS:
        if isinstance(getattr(data, part), LostRows):
            rows, _ = read_source(config, open_source(_spec(_reference(folder, part)["wanted"])), part)
            kept = _store(folder, config, part, rows)
            data = replace(data, train=kept) if part == "train" else replace(data, held_out=kept)
    return data


def hash_sources(folder: Path) -> None:
    """Add the hashes of the files of large sources, where they are missing. Takes seconds for every GB."""
    for part in PARTS:
        if not (folder / f"{part}.source.json").is_file():
            continue
        reference = _reference(folder, part)
        for file in reference["files"]:
            if file["sha256"] is None and _stamp(file) == FileStamp.of(file["path"]):
                whole = sha256_of(Path(file["path"]))
                if _stamp(file) == FileStamp.of(file["path"]):
                    file["sha256"] = whole
        write_atomically(folder / f"{part}.source.json", json.dumps(reference, indent=1))


def _store(folder: Path, config: Config, part: str, rows: Sequence[Row]) -> Sequence[Row]:
    copy = folder / f"{part}.jsonl"
    if isinstance(rows, DataRows) and rows.source.is_large:
        _write_reference(folder, part, rows)
        copy.unlink(missing_ok=True)
        return rows
    write_pieces(copy, (json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    if not rows:
        return []
    source = open_source(SourceSpec((str(copy),)))
    longest, origin = longest_of(rows, measured_columns(config, part)), rows if isinstance(rows, DataRows) else None
    return DataRows(source, _as_it_is, None, record_of_rows(rows), longest, origin)


def _as_it_is(row: Row, place: object) -> Row:
    return row


def _open(folder: Path, config: Config, part: str) -> Sequence[Row]:
    if not (folder / f"{part}.source.json").is_file():
        return load_saved_rows(config, folder / f"{part}.jsonl", part)
    reference = _reference(folder, part)
    count, first = int(reference["rows"]), reference.get("first", [])  # earlier versions did not keep rows

    def lost(reason: str) -> LostRows:
        return LostRows(count, reason, first)

    before = json.dumps(reference)
    for file in reference["files"]:
        if (reason := _change(file)) is not None:
            return lost(reason)
    if json.dumps(reference) != before:
        with suppress(OSError):  # someone else's folder is read too
            write_atomically(folder / f"{part}.source.json", json.dumps(reference, indent=1))
    spec = _spec(reference["wanted"])
    index = folder / f"{part}.index.npz"
    if not index.is_file():
        try:
            rows, _ = read_source(config, open_source(spec), part)
        except UserError as error:
            return lost(str(error))
        assert isinstance(rows, DataRows)
        if len(rows) != count:
            return lost(f"data: {rows.source.name} has {len(rows)} rows for the run, and had {count}")
        return replace(rows, record=reference["record"])
    try:
        with np.load(index, allow_pickle=False) as arrays:
            kept, longest = (arrays[name] for name in ("kept", "longest"))
            offsets = [arrays[name] for name in sorted(arrays.files) if name.startswith("offsets")]
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"cannot read '{index}': delete it, so that the rows are read anew") from error
    try:
        source = open_source(spec, offsets)
    except UserError as error:
        return lost(str(error))
    if len(source) != reference["source_rows"]:
        return lost(f"data: {source.name} has {len(source)} rows, and had {reference['source_rows']}")
    everything = count == len(source)
    reader = reader_of(config, part, stored=True)
    return DataRows(source, reader, None if everything else kept, reference["record"], longest)


def _write_reference(folder: Path, part: str, rows: DataRows) -> None:
    source: SourceRows = rows.source
    kept = np.zeros(0, dtype=np.int64) if rows.kept is None else rows.kept
    offsets = {
        f"offsets{number:06}": each.offsets for number, each in enumerate(source.parts) if isinstance(each, LineRows)
    }
    draft = folder / f".{part}.index.npz"
    np.savez(draft, kept=kept, longest=rows.longest, **offsets)  # type: ignore[arg-type]
    draft.replace(folder / f"{part}.index.npz")
    reference = {
        "rows": len(rows),
        "source_rows": len(source),
        "record": rows.record,
        "first": _within(rows[:FIRST], FIRST_CHARACTERS),
        "wanted": spec_dict(source.spec),
        "files": [{**asdict(stamp), "sha256": None} for part in source.stamps for stamp in part],
    }
    write_atomically(folder / f"{part}.source.json", json.dumps(reference, indent=1))


def _within(rows: Sequence[Row], characters: int) -> list[Row]:
    """The first rows whose length as JSON is not above a limit."""
    ends = accumulate(len(json.dumps(row)) for row in rows)
    return [row for row, end in zip(rows, ends, strict=True) if end <= characters]


def _change(file: dict[str, Any]) -> str | None:
    """How a file has changed since the run started; None if it has not. Sets its time of change if only that has."""
    try:
        now = FileStamp.of(file["path"])
        if now == _stamp(file):
            return None
        what = f"data: '{file['path']}' has changed since the run started"
        if file["changed"] is None:
            what = f"data: '{file['path']}' is not the same file as on rank 0"
        if now.size != file["size"]:
            return f"{what}: it has {now.size} bytes, and had {file['size']}"
        if file["changed"] is None:
            return None if _sample(file["path"]) == file["sample"] else what
        if file["sha256"] is None:
            return f"{what}, and its hash was not computed yet"
        with phase("hash the data"):
            if sha256_of(Path(file["path"])) != file["sha256"]:
                return f"{what}: it has another hash"
    except (UserError, OSError) as error:
        line = f"data: cannot read '{file['path']}': {error.strerror}" if isinstance(error, OSError) else str(error)
        return f"{line}: the run's rows are in this file"
    file["changed"] = now.changed
    return None


def _sample(path: str) -> str:
    """A hash of some pieces of a file, from its beginning to its end."""
    hashed = sha256()
    try:
        with open(path, "rb") as file:
            last = max(0, os.fstat(file.fileno()).st_size - PIECE)
            for number in range(PIECES):
                file.seek(last * number // (PIECES - 1))
                hashed.update(file.read(PIECE))
    except OSError as error:
        raise UserError(f"data: cannot read '{path}': {error.strerror}") from error
    return hashed.hexdigest()


def _stamp(file: dict[str, Any]) -> FileStamp:
    return FileStamp(file["path"], file["size"], file["changed"])


def _spec(given: dict[str, Any]) -> SourceSpec:
    return SourceSpec(tuple(given["names"]), given["config"], given["split"], given["columns"], given["revisions"])


def _reference(folder: Path, part: str) -> dict[str, Any]:
    path = folder / f"{part}.source.json"
    try:
        reference = parse_json(read_regular(path))
        assert isinstance(reference, dict)
        for key in ("rows", "source_rows", "record", "wanted", "files"):
            reference[key]
    except (OSError, ValueError, KeyError, AssertionError) as error:
        raise UserError(f"cannot read '{path}': restore it from a copy of the run's folder") from error
    return reference
