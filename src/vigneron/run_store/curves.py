"""A run's curves in SQLite, beside metrics.jsonl: any range of any metric is read without reading the whole file.

metrics.jsonl is the source; this file may be deleted at any time and is rebuilt. New steps are kept as rows of JSON.
When a block of 256 steps is full, each metric's values become one row, with minimum, maximum, sum and count over 16,
256 and 4096 steps. A step costs one small row, not one per metric.
"""

import json
import sqlite3
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, Protocol

from vigneron.errors import UserError, first_line
from vigneron.files import lines_of
from vigneron.run_store.folder import RunFolder, record_of
from vigneron.run_store.series import Curve, Span, joined_by_width, joined_to, spans_of
from vigneron.run_store.speed import with_speeds
from vigneron.run_store.sqlite_files import open_read_only, open_writable
from vigneron.run_store.status import last_records
from vigneron.values import is_number

MAX_POINTS = 1_000
"""Of a curve in the viewer: more are not visible."""


def values_of(record: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a record; missing values and values that are not finite are left out."""
    return {name: float(value) for name, value in record.items() if name != "step" and is_number(value)}


def within(steps: Sequence[int], first: float, last: float) -> slice:
    """The slice of a sorted sequence of steps from `first` to `last`."""
    return slice(bisect_left(steps, first), bisect_right(steps, last))


CURVES = "curves.sqlite"
BLOCK = 256
WIDTHS = (16, 256, 4096)
MIN_POINTS = 200
"""Of a long curve."""
TABLES = """
    CREATE TABLE IF NOT EXISTS recent (step INTEGER PRIMARY KEY, record TEXT NOT NULL);
    CREATE TABLE IF NOT EXISTS names (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
    CREATE TABLE IF NOT EXISTS blocks (name INTEGER, start INTEGER, steps BLOB, figures BLOB, PRIMARY KEY (name, start))
        WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS spans (width INTEGER, name INTEGER, start INTEGER, step REAL, low REAL, high REAL,
        total REAL, number INTEGER, PRIMARY KEY (width, name, start)) WITHOUT ROWID;
"""


DAMAGED = (sqlite3.Error, ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError)
"""What reading a damaged store can raise."""


@contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except DAMAGED as error:
        raise UserError(f"cannot read {CURVES}: {first_line(error)}; delete it to use metrics.jsonl") from error


class CurveStore:
    """`curves.sqlite` in the run's folder."""

    def __init__(self, folder: Path, *, read_only: bool = False) -> None:
        path = folder / CURVES
        self._db = open_read_only(path) if read_only else open_writable(path)
        if not read_only:
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")
            self._db.executescript(TABLES)
        self._read_only = read_only
        self._cached: dict[str, tuple[list[int], list[float]]] | None = None
        self._ids: dict[str, int] = dict(self._db.execute("SELECT name, id FROM names"))
        # The block of the steps that are not in `blocks` yet.
        self._open_block = self._db.execute("SELECT min(step) / ? FROM recent", (BLOCK,)).fetchone()[0]

    def add(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Records in the order of their steps. A second record of a step replaces the first one's values."""
        with self._db:
            for record in records:
                step, values = int(record["step"]), values_of(record)
                block = step // BLOCK
                if self._open_block is not None and block > self._open_block:
                    self._close_block(self._open_block * BLOCK, block * BLOCK)
                self._open_block = block
                text = json.dumps(values)
                self._db.execute(
                    "INSERT INTO recent VALUES (?, ?) ON CONFLICT (step) DO UPDATE SET record = json_patch(record, ?)",
                    (step, text, text),
                )

    def _close_block(self, start: int, following: int) -> None:
        for name, (steps, values) in self._recent().items():
            key = self._id(name)
            of_steps, of_values = array("q", map(int, steps)), array("d", values)
            self._db.execute(
                "INSERT OR REPLACE INTO blocks VALUES (?, ?, ?, ?)",
                (key, start, of_steps.tobytes(), of_values.tobytes()),
            )
            self._keep_spans(16, key, spans_of(of_steps, of_values))
            self._keep_spans(256, key, spans_of(of_steps, of_values))
        self._db.execute("DELETE FROM recent")
        widest = WIDTHS[-1]
        if following // widest > start // widest:
            whole = start // widest * widest
            for key in self._ids.values():
                self._keep_spans(widest, key, self._spans(256, key, whole, whole + widest - 1))

    def _keep_spans(self, width: int, key: int, spans: Sequence[Span]) -> None:
        rows = [(width, key, start, *span) for start, span in joined_by_width(spans, width).items()]
        self._db.executemany("INSERT OR REPLACE INTO spans VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def _id(self, name: str) -> int:
        if name not in self._ids:
            self._ids[name] = int(self._db.execute("INSERT INTO names (name) VALUES (?)", (name,)).lastrowid or 0)
        return self._ids[name]

    def forget_from(self, step: int) -> int:
        """Delete this step's whole block and everything after it; returns the first step that has to be added again."""
        start = step // BLOCK * BLOCK
        with self._db:
            self._db.execute("DELETE FROM recent WHERE step >= ?", (start,))
            self._db.execute("DELETE FROM blocks WHERE start >= ?", (start,))
            self._db.execute("DELETE FROM spans WHERE start + width > ?", (start,))
        self._open_block = None
        return start

    def names(self) -> list[str]:
        """All metrics, in the order in which they first appeared."""
        with _reading():
            return list(dict.fromkeys((*self._ids, *self._recent())))

    def last_step(self) -> int | None:
        """The last step that was added."""
        recent = self._db.execute("SELECT max(step) FROM recent").fetchone()[0]
        return None if recent is None else int(recent)

    def read(
        self, names: Sequence[str], first: float = 0, last: float | None = None, limit: int = MAX_POINTS
    ) -> dict[str, Curve]:
        """At most `limit` points each, of the steps from `first` to `last`; an unknown metric has none."""
        with _reading():
            return self._curves(names, first, last, limit)

    def _curves(self, names: Sequence[str], first: float, last: float | None, limit: int) -> dict[str, Curve]:
        end = self.last_step() or 0
        first, last = max(0, first), end if last is None else min(last, end)
        recent = self._recent()
        curves = {}
        for name in names:
            steps, values = recent.get(name, ((), ()))
            part = within(steps, first, last)
            tail = spans_of(steps[part], values[part])
            width, blocks = self._read_blocks(self._ids.get(name), first, last, limit - len(tail))
            tail = list(joined_by_width(tail, width).values())
            curves[name] = Curve.of(joined_to([*blocks, *tail], limit))
        return curves

    def _read_blocks(self, key: int | None, first: float, last: float, limit: int) -> tuple[int, list[Span]]:
        """(width, spans) of the full blocks: each span covers `width` steps."""
        (number,) = self._db.execute(
            "SELECT coalesce(sum(number), 0) FROM spans WHERE width = 256 AND name = ? AND start BETWEEN ? AND ?",
            (key, first - BLOCK + 1, last),
        ).fetchone()
        if number <= limit:
            return 1, list(self._points(key, first, last))
        # The widest that still gives enough points.
        width = next((width for width in reversed(WIDTHS) if (last - first) / width >= MIN_POINTS), WIDTHS[0])
        spans = self._spans(width, key, first, last)
        # The widest spans are written when they are full: the rest comes from narrower ones.
        if width == WIDTHS[-1]:
            (after,) = self._db.execute(
                "SELECT coalesce(max(start) + width, 0) FROM spans WHERE width = ? AND name = ?", (width, key)
            ).fetchone()
            spans += self._spans(256, key, max(first, after), last)
        return width, spans

    def _spans(self, width: int, key: int | None, first: float, last: float) -> list[Span]:
        rows = self._db.execute(
            "SELECT step, low, high, total, number FROM spans WHERE width = ? AND name = ? AND start BETWEEN ? AND ? "
            "ORDER BY start",
            (width, key, first - width + 1, last),
        )
        return [Span(*row) for row in rows]

    def _points(self, key: int | None, first: float, last: float) -> Iterator[Span]:
        rows = self._db.execute(
            "SELECT steps, figures FROM blocks WHERE name = ? AND start BETWEEN ? AND ? ORDER BY start",
            (key, first - BLOCK + 1, last),
        )
        for of_steps, of_values in rows:
            steps, values = array("q", of_steps), array("d", of_values)
            part = within(steps, first, last)
            yield from spans_of(steps[part], values[part])

    def _recent(self) -> dict[str, tuple[list[int], list[float]]]:
        """Read once by a page's request."""
        if self._cached is not None:
            return self._cached
        columns: dict[str, tuple[list[int], list[float]]] = {}
        for step, record in self._db.execute("SELECT step, record FROM recent ORDER BY step"):
            for name, value in json.loads(record).items():
                steps, values = columns.setdefault(name, ([], []))
                steps.append(step)
                values.append(value)
        self._cached = columns if self._read_only else None
        return columns

    def close(self) -> None:
        self._db.close()


class CurveIndex:
    """The store that a run writes. An error is reported once, and the run continues without it."""

    def __init__(self, folder: RunFolder, notify: Callable[[str], None]) -> None:
        self._folder, self._notify = folder, notify
        self._store: CurveStore | None = None

    def __enter__(self) -> "CurveIndex":
        """Bring it up to date with metrics.jsonl: after a kill, a resume, or where there is none yet."""
        try:
            try:
                self._store = _up_to_date(self._folder)
            except sqlite3.DatabaseError:  # broken: it is rebuilt
                self._remove()
                self._store = _up_to_date(self._folder)
        except (sqlite3.Error, OSError, ValueError) as error:
            self._give_up(error)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._store is not None:
            self._store.close()

    def add(self, record: Mapping[str, Any]) -> None:
        if self._store is None:
            return
        try:
            self._store.add([record])
        except sqlite3.Error as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None
        self._remove()
        self._notify(f"cannot write {CURVES} ({error}): `vigneron view` reads metrics.jsonl instead, which is slower")

    def _remove(self) -> None:
        for end in ("", "-wal", "-shm"):
            with suppress(OSError):  # readers notice that it is out of date
                (self._folder.path / f"{CURVES}{end}").unlink(missing_ok=True)


def _up_to_date(folder: RunFolder) -> CurveStore:
    store = CurveStore(folder.path)
    try:
        records = last_records(folder.path / "metrics.jsonl")
        logged, indexed = (records[-1]["step"] if records else -1), store.last_step()
        if indexed != logged:
            start = store.forget_from(min(logged, -1 if indexed is None else indexed))
            missing = (record for record in folder.metrics() if record["step"] >= start)
            store.add(with_speeds(missing, folder.path))
    except BaseException:
        store.close()
        raise
    return store


LOGS_KEPT = 32


class Curves(Protocol):
    def names(self) -> list[str]: ...
    def last_step(self) -> int | None: ...
    def read(
        self, names: Sequence[str], first: float = 0, last: float | None = None, limit: int = MAX_POINTS
    ) -> dict[str, Curve]: ...
    def close(self) -> None: ...


def _records(path: Path) -> Iterator[dict[str, Any]]:
    """Damaged lines are left out."""
    for line in lines_of(path):
        try:
            yield record_of(line)
        except ValueError:
            continue


class CurveLog:
    """metrics.jsonl, and the speeds of timings.jsonl, read as a whole."""

    def __init__(self, path: Path) -> None:
        self._columns: dict[str, tuple[list[int], list[float]]] = {}
        self._last: int | None = None
        for record in with_speeds(_records(path), path.parent):
            self._add(record)

    def _add(self, record: Mapping[str, Any]) -> None:
        self._last = record["step"]
        for name, value in values_of(record).items():
            steps, values = self._columns.setdefault(name, ([], []))
            steps.append(record["step"])
            values.append(value)

    def names(self) -> list[str]:
        return list(self._columns)

    def last_step(self) -> int | None:
        return self._last

    def read(
        self, names: Sequence[str], first: float = 0, last: float | None = None, limit: int = MAX_POINTS
    ) -> dict[str, Curve]:
        curves = {}
        for name in names:
            steps, values = self._columns.get(name, ([], []))
            part = within(steps, first, float("inf") if last is None else last)
            curves[name] = Curve.of(joined_to(spans_of(steps[part], values[part]), limit))
        return curves

    def close(self) -> None:
        """Nothing is open."""


_logs: dict[Path, tuple[tuple[int, int], CurveLog]] = {}
_lock = Lock()


def read_log(path: Path) -> CurveLog:
    """Cached until the file changes."""
    with _lock:
        at = path.stat()
        mark = (at.st_size, at.st_mtime_ns)
        cached = _logs.pop(path, None)
        log = cached[1] if cached is not None and cached[0] == mark else CurveLog(path)
        _logs[path] = (mark, log)
        for oldest in list(_logs)[:-LOGS_KEPT]:
            del _logs[oldest]
        return log


def curves_of(folder: Path) -> tuple[Curves | None, str | None]:
    """None: no step has been logged. The text is a note for the user where `curves.sqlite` cannot be used."""
    log, note = folder / "metrics.jsonl", None
    if (folder / CURVES).exists():
        try:
            store = CurveStore(folder, read_only=True)
            with ExitStack() as unused:
                unused.callback(store.close)
                store.names()
                if _is_current(store, log):
                    unused.pop_all()
                    return store, None
            note = f"{folder.name}: {CURVES} is out of date, metrics.jsonl was read instead"
        except (*DAMAGED, UserError) as error:
            note = f"{folder.name}: cannot read {CURVES} ({error}), metrics.jsonl was read instead"
    return (read_log(log), note) if log.is_file() else (None, note)


def _is_current(store: CurveStore, log: Path) -> bool:
    """metrics.jsonl is written first: the store may be one step behind."""
    logged = [record["step"] for record in last_records(log, limit=2)]
    return not log.exists() or store.last_step() in (logged or [None])
