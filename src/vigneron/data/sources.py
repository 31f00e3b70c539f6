"""Where rows come from: files of several formats, folders of `save_to_disk`, and datasets of the Hugging Face hub.

train.jsonl, train.csv, train.tsv         read from the file at every access; .ndjson is .jsonl
train.jsonl.gz, train.json, train.csv.gz  unpacked once into the cache folder
train.parquet, a folder of `save_to_disk` through the `datasets` library
hf:org/name                               the same, from the hub
data/*.jsonl, or a list                   several of these, one after the other
"""

import glob
import os
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import numpy as np

from vigneron.data.arrow import HUB, ArrowRows, arrow_files, hub_revision, hub_rows, is_saved, parquet_rows, saved_rows
from vigneron.data.lines import LineRows, Row
from vigneron.data.unpack import unpacked
from vigneron.errors import UserError, did_you_mean
from vigneron.files import user_path

PACKED = (".jsonl.gz", ".ndjson.gz", ".json.gz", ".json", ".csv.gz", ".tsv.gz")
SUFFIXES = (".jsonl", ".ndjson", ".csv", ".tsv", ".parquet", *PACKED)
"""Of a name in small letters."""
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?")
HUB_PAGE = re.compile(r"https?://huggingface\.co/datasets/([\w.-]+/[\w.-]+)")
LARGE = 50_000_000
"""Bytes above which a run's folder refers to a source, and keeps no copy of it."""


@dataclass(frozen=True)
class SourceSpec:
    """The source that a config names, and the commits of the hub's datasets when they were first read."""

    names: tuple[str, ...]
    config: str | None = None
    split: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    revisions: Mapping[str, str] = field(default_factory=dict)
    split_key: str = field(default="data.split", compare=False)
    """The config's key for `split`, in messages."""


@dataclass(frozen=True)
class FileStamp:
    """A file's size and the time of its last change, in nanoseconds."""

    path: str
    size: int
    changed: int

    @classmethod
    def of(cls, path: str | Path) -> "FileStamp":
        try:
            stat = os.stat(path)
        except OSError as error:
            raise UserError(f"data: cannot read '{path}': {error.strerror}") from error
        return cls(str(path), stat.st_size, stat.st_mtime_ns)


@dataclass
class SourceRows:
    """The rows of a source, with its columns renamed."""

    spec: SourceSpec
    parts: Sequence[LineRows | ArrowRows]
    stamps: Sequence[Sequence[FileStamp]]
    """Of the files that each part was read from."""

    def __post_init__(self) -> None:
        self._ends = list(accumulate(len(part) for part in self.parts))
        self._renamed = {old: new for new, old in self.spec.columns.items()}
        if len(self):
            first = self[0] if not self._renamed else self._part(0)[0][0]
            for old in self._renamed:
                if old not in first:
                    raise UserError(f"data.columns: {self.place(0)} has no '{old}'{did_you_mean(old, first)}")

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)

    @property
    def is_large(self) -> bool:
        return self.size > LARGE

    @property
    def name(self) -> str:
        """In messages about all rows."""
        more = len(self.parts) - 1
        return f"'{self.parts[0].name}'" + (f" and {more} more file{'s' if more > 1 else ''}" if more else "")

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> Row:
        part, at = self._part(index)
        return self._with_names(part[at])

    def __iter__(self) -> Iterator[Row]:
        return self.between(0, len(self))

    def between(self, first: int, last: int) -> Iterator[Row]:
        """Rows first … last − 1, in fewer reads than one by one."""
        return (row for row, _ in self.with_lines(first, last))

    def with_lines(self, first: int, last: int) -> Iterator[tuple[Row, bytes | None]]:
        """Rows first … last − 1, each with its line where it is one of a file of lines."""
        begin = 0
        for part, end in zip(self.parts, self._ends, strict=True):
            if begin < last and first < end:
                rows: Iterator[tuple[Row, bytes | None]] = part.with_lines(
                    max(first, begin) - begin, min(last, end) - begin
                )
                yield from (((self._with_names(row), line) for row, line in rows) if self._renamed else rows)
            begin = end

    def place(self, index: int) -> str:
        part, at = self._part(index)
        return part.place(at)

    def check_unchanged(self, index: int | None = None) -> None:
        """Raise if a file has changed: one that a row is in, or with None any."""
        parts = self.stamps if index is None else [self.stamps[bisect_right(self._ends, index)]]
        for stamp in chain.from_iterable(parts):
            if FileStamp.of(stamp.path) != stamp:
                raise UserError(
                    f"data: '{stamp.path}' changed while the run was reading it: restore it, or start a new run; "
                    "checkpoints are intact"
                )

    def _part(self, index: int) -> tuple[LineRows | ArrowRows, int]:
        number = bisect_right(self._ends, index)
        return self.parts[number], index - (self._ends[number - 1] if number else 0)

    def _with_names(self, row: Row) -> Row:
        names = self._renamed
        if not names:
            return row
        given = {names[name]: value for name, value in row.items() if name in names}
        return {**{name: value for name, value in row.items() if name not in names}, **given}


def open_source(spec: SourceSpec, offsets: Sequence[np.ndarray] = ()) -> SourceRows:
    """Open all parts. Rows are not read; files of lines are indexed, unless the offsets of their rows are given."""
    names = [name for given in spec.names for name in source_names(given)]
    _check_keys(spec, names)
    stamps = [_stamps(name) for name in names]
    revisions = dict(spec.revisions)
    for name in names:
        if name.startswith(HUB) and name not in revisions and (commit := hub_revision(name)) is not None:
            revisions[name] = commit
    spec, known = replace(spec, names=tuple(names), revisions=revisions), iter(offsets)
    parts = [_open(name, spec, known) for name in names]
    cached = {
        name: part.commit
        for name, part in zip(names, parts, strict=True)
        if isinstance(part, ArrowRows) and part.commit is not None
    }
    return SourceRows(replace(spec, revisions={**cached, **revisions}), parts, stamps)


def _open(name: str, spec: SourceSpec, offsets: Iterator[np.ndarray]) -> LineRows | ArrowRows:
    if name.startswith(HUB):
        return hub_rows(name, spec.config, spec.split or "train", spec.revisions.get(name))
    path = Path(name)
    if path.is_dir():
        return saved_rows(path, spec.split, spec.split_key)
    if name.lower().endswith(".parquet"):
        return parquet_rows(path)
    return LineRows.of(unpacked(path) if name.lower().endswith(PACKED) else path, name, next(offsets, None))


def source_names(name: str) -> list[str]:
    """The files of a pattern, sorted; or the name itself. Checked to be readable."""
    if name.startswith(HUB):
        if not HUB_NAME.fullmatch(name.removeprefix(HUB)):
            raise UserError(f"data: '{name}' is no dataset of the hub: write `hf:org/name`")
        return [name]
    if "://" in name:
        page = HUB_PAGE.match(name)
        fix = f"write `hf:{page[1]}`" if page else "download the file and name its path, or write `hf:org/name`"
        raise UserError(f"data: '{name}' is a URL, which is not read: {fix}")
    path = user_path(name)
    if any(c in name for c in "*?[") and not path.exists():
        names = sorted(glob.glob(str(path), recursive=True))
        if not names:
            raise UserError(f"data: no file fits the pattern '{name}'")
    else:
        names = [str(path)]
    for each in names:
        if Path(each).is_dir() and is_saved(Path(each)):
            continue
        if Path(each).is_dir():
            raise UserError(_no_saved_folder(Path(each)))
        if not Path(each).is_file():
            hub = HUB_NAME.fullmatch(name) and "/" in name and not is_data_file(name)
            hint = f": a dataset of the hub is written `hf:{name}`" if hub else ""
            raise UserError(f"data: file not found: '{Path(each).absolute()}'{hint}")
        if not is_data_file(each):
            raise UserError(
                f"data: '{each}' is not a .jsonl or .csv file, nor .tsv, .json, .parquet, .jsonl.gz or .csv.gz, a "
                "folder of `save_to_disk`, or `hf:org/name`"
            )
    return names


def _no_saved_folder(path: Path) -> str:
    kinds = [kind for kind in SUFFIXES if any(path.glob(f"*{kind}"))]
    line = f"data: '{path.absolute()}' is a folder that `datasets.save_to_disk` has not written"
    if kinds:
        return f"{line}: for its files give the pattern '{path}/*{kinds[0]}'"
    deeper = [kind for kind in SUFFIXES if any(path.glob(f"*/*{kind}"))]
    return f"{line}: for its files give the pattern '{path}/*/*{deeper[0]}'" if deeper else f"{line}: name a file"


def _check_keys(spec: SourceSpec, names: Sequence[str]) -> None:
    on_hub = [name for name in names if name.startswith(HUB)]
    if spec.config is not None and not on_hub:
        raise UserError("data.config has no effect: it names a configuration of a hub dataset, `hf:org/name`")
    if spec.split is not None and not on_hub and not any(Path(name).is_dir() for name in names):
        raise UserError(
            f"{spec.split_key} has no effect on files: it is for `hf:org/name` and folders of `save_to_disk`"
        )


def _stamps(name: str) -> list[FileStamp]:
    if name.startswith(HUB):
        return []
    path = Path(name).absolute()
    return [FileStamp.of(file) for file in (arrow_files(path) if path.is_dir() else [path])]


def read_rows(path: str | Path) -> list[Row]:
    """All rows of a file, in memory. Errors name the row or line by its number."""
    return [*open_source(SourceSpec((str(path),)))]


def is_data_file(name: str) -> bool:
    return name.startswith(HUB) or name.lower().endswith(SUFFIXES)


def spec_dict(spec: SourceSpec) -> dict[str, Any]:
    """As JSON, with absolute paths."""
    names = [n if n.startswith(HUB) else str(user_path(n).absolute()) for n in spec.names]
    return {
        "names": names,
        "config": spec.config,
        "split": spec.split,
        "columns": dict(spec.columns),
        "revisions": dict(spec.revisions),
    }
