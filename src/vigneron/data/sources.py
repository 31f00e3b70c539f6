"""Where rows come from: files of several formats, folders of `save_to_disk`, and datasets of the Hugging Face hub.

train.jsonl, train.csv                    read from the file at every access
train.jsonl.gz, train.json, train.json.gz unpacked once into the cache folder
train.parquet, a folder of `save_to_disk` through the `datasets` library
hf:org/name                               the same, from the hub
data/*.jsonl, or a list                   several of these, one after the other
"""

import glob
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from vigneron.data.arrow import HUB, ArrowRows, arrow_files, hub_revision, hub_rows, is_saved, parquet_rows, saved_rows
from vigneron.data.lines import LineRows, Row
from vigneron.data.unpack import unpacked
from vigneron.errors import UserError, did_you_mean
from vigneron.files import user_path

PACKED = (".jsonl.gz", ".json.gz", ".json")
SUFFIXES = (".jsonl", ".csv", ".parquet", *PACKED)


@dataclass(frozen=True)
class Wanted:
    """What a config names, and the commits of the hub's datasets when they were first read."""

    names: tuple[str, ...]
    config: str | None = None
    split: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    revisions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class FileStamp:
    """A file's size and the time of its last change, in nanoseconds."""

    path: str
    size: int
    changed: int

    @classmethod
    def of(cls, path: str | Path) -> "FileStamp":
        try:
            stat = Path(path).stat()
        except OSError as error:
            raise UserError(f"data: cannot read '{path}': {error.strerror}") from error
        return cls(str(path), stat.st_size, stat.st_mtime_ns)


@dataclass
class SourceRows:
    """The rows of a source, with its columns renamed."""

    wanted: Wanted
    parts: Sequence[LineRows | ArrowRows]
    stamps: tuple[FileStamp, ...]
    """Of all files that it was read from."""

    def __post_init__(self) -> None:
        self._ends = list(accumulate(len(part) for part in self.parts))
        self._renamed = {old: new for new, old in self.wanted.columns.items()}
        if len(self):
            first = self[0] if not self._renamed else self._part(0)[0][0]
            for old in self._renamed:
                if old not in first:
                    raise UserError(f"data.columns: {self.place(0)} has no '{old}'{did_you_mean(old, first)}")

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

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
        begin = 0
        for part, end in zip(self.parts, self._ends, strict=True):
            if begin < last and first < end:
                rows = part.between(max(first, begin) - begin, min(last, end) - begin)
                yield from (map(self._with_names, rows) if self._renamed else rows)
            begin = end

    def place(self, index: int) -> str:
        part, at = self._part(index)
        return part.place(at)

    def check_unchanged(self) -> None:
        for stamp in self.stamps:
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


def open_source(wanted: Wanted, offsets: Sequence[np.ndarray] = ()) -> SourceRows:
    """Open all parts. Rows are not read; files of lines are indexed, unless the offsets of their rows are given."""
    names = [name for given in wanted.names for name in _expanded(given)]
    _check_keys(wanted, names)
    stamps = [stamp for name in names for stamp in _stamps(name)]
    revisions = dict(wanted.revisions)
    for name in names:
        if name.startswith(HUB) and name not in revisions and (commit := hub_revision(name)) is not None:
            revisions[name] = commit
    wanted = Wanted(tuple(names), wanted.config, wanted.split, wanted.columns, revisions)
    known = iter(offsets)
    return SourceRows(wanted, [_open(name, wanted, known) for name in names], tuple(stamps))


def _open(name: str, wanted: Wanted, offsets: Iterator[np.ndarray]) -> LineRows | ArrowRows:
    if name.startswith(HUB):
        return hub_rows(name, wanted.config, wanted.split or "train", wanted.revisions.get(name))
    path = Path(name)
    if path.is_dir():
        return saved_rows(path, wanted.split)
    if path.suffix == ".parquet":
        return parquet_rows(path)
    return LineRows.of(unpacked(path) if name.endswith(PACKED) else path, name, next(offsets, None))


def _expanded(name: str) -> list[str]:
    """The files of a pattern, sorted; or the name itself. Checked to be readable."""
    if name.startswith(HUB):
        return [name]
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
        if not Path(each).is_file():
            raise UserError(f"data: file not found: '{Path(each).absolute()}'")
        if not each.endswith(SUFFIXES):
            raise UserError(
                f"data: '{each}' is not a .jsonl or .csv file, nor .json, .jsonl.gz or .parquet, a folder of "
                "`save_to_disk`, or `hf:org/name`"
            )
    return names


def _check_keys(wanted: Wanted, names: Sequence[str]) -> None:
    on_hub = [name for name in names if name.startswith(HUB)]
    if wanted.config is not None and not on_hub:
        raise UserError("data.config has no effect: it names a configuration of a hub dataset, `hf:org/name`")
    if wanted.split is not None and not on_hub and not any(Path(name).is_dir() for name in names):
        raise UserError("data.split has no effect on files: it is for `hf:org/name` and folders of `save_to_disk`")


def _stamps(name: str) -> list[FileStamp]:
    if name.startswith(HUB):
        return []
    path = Path(name).absolute()
    return [FileStamp.of(file) for file in (arrow_files(path) if path.is_dir() else [path])]


def read_rows(path: str | Path) -> list[Row]:
    """All rows of a file, in memory. Errors name the row or line by its number."""
    return [*open_source(Wanted((str(path),)))]


def is_data_file(name: str) -> bool:
    return name.startswith(HUB) or name.endswith(SUFFIXES)


def wanted_dict(wanted: Wanted) -> dict[str, Any]:
    """As JSON, with absolute paths."""
    names = [n if n.startswith(HUB) else str(user_path(n).absolute()) for n in wanted.names]
    return {
        "names": names,
        "config": wanted.config,
        "split": wanted.split,
        "columns": dict(wanted.columns),
        "revisions": dict(wanted.revisions),
    }
