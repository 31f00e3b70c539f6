"""The rows that a run's folder keeps: a copy, or of a large source its path, size and hash.

data/train.jsonl         the rows as the run reads them
data/train.source.json   instead, for a source above `LARGEST_COPY` bytes: where its rows are
data/train.index.npz     and which of them, so that a resume need not read them all
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NoReturn, overload

import numpy as np

from vigneron.config import Config
from vigneron.data.lines import LineRows
from vigneron.data.prompts import Row
from vigneron.data.rows import DataRows, longest_of, record_of_rows
from vigneron.data.sources import FileStamp, SourceRows, Wanted, open_source, wanted_dict
from vigneron.errors import UserError
from vigneron.files import parse_json, read_regular, sha256_of, write_atomically, write_pieces
from vigneron.run_data.load import Data, load_saved_rows, read_source
from vigneron.run_data.readers import measured_columns, reader_of
from vigneron.timing import phase

LARGEST_COPY = 50_000_000
"""Bytes."""
PARTS = ("train", "held_out")


class LostRows(Sequence[Row]):
    """Rows of a source that is gone or has changed: their number is known, and reading one raises the reason."""

    def __init__(self, count: int, reason: str) -> None:
        self.number, self.reason = count, reason

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


def read_changed(folder: Path, config: Config, data: Data) -> Data:
    """The data with lost rows read anew from their source, as it is now."""
    for part in PARTS:
        if isinstance(getattr(data, part), LostRows):
            rows, _ = read_source(config, open_source(_wanted(_reference(folder, part)["wanted"])), part)
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
                sha256 = sha256_of(Path(file["path"]))
                if _stamp(file) == FileStamp.of(file["path"]):
                    file["sha256"] = sha256
        write_atomically(folder / f"{part}.source.json", json.dumps(reference, indent=1))


def _store(folder: Path, config: Config, part: str, rows: Sequence[Row]) -> Sequence[Row]:
    copy = folder / f"{part}.jsonl"
    if isinstance(rows, DataRows) and rows.source.bytes > LARGEST_COPY:
        _write_reference(folder, part, rows)
        copy.unlink(missing_ok=True)
        return rows
    write_pieces(copy, (json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    if not rows:
        return []
    source = open_source(Wanted((str(copy),)))
    return DataRows(source, _as_it_is, None, record_of_rows(rows), longest_of(rows, measured_columns(config, part)))


def _as_it_is(row: Row, place: str) -> Row:
    return row


def _open(folder: Path, config: Config, part: str) -> Sequence[Row]:
    if not (folder / f"{part}.source.json").is_file():
        return load_saved_rows(config, folder / f"{part}.jsonl", part)
    reference = _reference(folder, part)
    count = int(reference["rows"])
    for file in reference["files"]:
        if (reason := _change(file)) is not None:
            return LostRows(count, reason)
    wanted = _wanted(reference["wanted"])
    index = folder / f"{part}.index.npz"
    if not index.is_file():  # another rank's folder
        return read_source(config, open_source(wanted), part)[0]
    try:
        with np.load(index, allow_pickle=False) as arrays:
            kept, longest = (arrays[name] for name in ("kept", "longest"))
            offsets = [arrays[name] for name in sorted(arrays.files) if name.startswith("offsets")]
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"cannot read '{index}': delete it, so that the rows are read anew") from error
    try:
        source = open_source(wanted, offsets)
    except UserError as error:
        return LostRows(count, str(error))
    if len(source) != reference["source_rows"]:
        return LostRows(count, f"data: {source.name} has {len(source)} rows, and had {reference['source_rows']}")
    everything = len(kept) == len(source)
    return DataRows(source, reader_of(config, part), None if everything else kept, reference["record"], longest)


def _write_reference(folder: Path, part: str, rows: DataRows) -> None:
    source: SourceRows = rows.source
    kept = np.arange(len(source)) if rows.kept is None else rows.kept
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
        "wanted": wanted_dict(source.wanted),
        "files": [{**asdict(stamp), "sha256": None} for stamp in source.stamps],
    }
    write_atomically(folder / f"{part}.source.json", json.dumps(reference, indent=1))


def _change(file: dict[str, Any]) -> str | None:
    """How a file has changed since the run started; None if it has not. Sets its stamp if only that has."""
    try:
        now = FileStamp.of(file["path"])
    except UserError as error:
        return f"{error}: the run's rows are in this file"
    if now == _stamp(file):
        return None
    what = f"data: '{file['path']}' has changed since the run started"
    if now.size != file["size"]:
        return f"{what}: it has {now.size} bytes, and had {file['size']}"
    if file["sha256"] is None:
        return f"{what}, and its hash was not computed yet"
    with phase("hash the data"):
        if sha256_of(Path(file["path"])) != file["sha256"]:
            return f"{what}: it has another hash"
    return None


def _stamp(file: dict[str, Any]) -> FileStamp:
    return FileStamp(file["path"], file["size"], file["changed"])


def _wanted(given: dict[str, Any]) -> Wanted:
    return Wanted(tuple(given["names"]), given["config"], given["split"], given["columns"], given["revisions"])


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
