"""A run's curves, in SQLite, written beside metrics.jsonl: any stretch of any figure is read without reading all.

metrics.jsonl is the truth; this file may be deleted at any time, and is made again. Steps are kept as they come; when a
block of 256 is full, each figure's values become one row, with their lowest, highest, sum and count over 16, 256 and
4096 steps. A step costs one small row, not one for each figure.
"""

import json
import sqlite3
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vigneron.folder.curve_points import MOST, Curve, Span, by_width, points, thinned, values_of, within
from vigneron.folder.database import open_read_only

CURVES = "curves.sqlite"
BLOCK = 256
WIDTHS = (16, 256, 4096)
FEWEST = 200
"""Points of a long curve, at least."""
TABLES = """
    CREATE TABLE IF NOT EXISTS recent (step INTEGER PRIMARY KEY, record TEXT NOT NULL);
    CREATE TABLE IF NOT EXISTS names (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
    CREATE TABLE IF NOT EXISTS blocks (name INTEGER, start INTEGER, steps BLOB, figures BLOB, PRIMARY KEY (name, start))
        WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS spans (width INTEGER, name INTEGER, start INTEGER, step REAL, low REAL, high REAL,
        total REAL, number INTEGER, PRIMARY KEY (width, name, start)) WITHOUT ROWID;
"""


class CurveStore:
    """`curves.sqlite` in the run's folder."""

    def __init__(self, folder: Path, *, read_only: bool = False) -> None:
        path = folder / CURVES
        self._db = open_read_only(path) if read_only else sqlite3.connect(path)
        if not read_only:
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")
            self._db.executescript(TABLES)
        self._ids: dict[str, int] = dict(self._db.execute("SELECT name, id FROM names"))
        # Of the steps that no block holds yet.
        self._open = self._db.execute("SELECT min(step) / ? FROM recent", (BLOCK,)).fetchone()[0]

    def add(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Lines of metrics, in order of their steps. Of a step that is told of twice the later values stand."""
        with self._db:
            for record in records:
                step, values = int(record["step"]), values_of(record)
                block = step // BLOCK
                if self._open is not None and block > self._open:
                    self._close_block(self._open * BLOCK, block * BLOCK)
                self._open = block
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
            self._keep_spans(16, key, points(of_steps, of_values))
            self._keep_spans(256, key, points(of_steps, of_values))
        self._db.execute("DELETE FROM recent")
        widest = WIDTHS[-1]
        if following // widest > start // widest:
            whole = start // widest * widest
            for key in self._ids.values():
                self._keep_spans(widest, key, self._spans(256, key, whole, whole + widest - 1))

    def _keep_spans(self, width: int, key: int, spans: Sequence[Span]) -> None:
        rows = [(width, key, start, *span) for start, span in by_width(spans, width).items()]
        self._db.executemany("INSERT OR REPLACE INTO spans VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def _id(self, name: str) -> int:
        if name not in self._ids:
            self._ids[name] = int(self._db.execute("INSERT INTO names (name) VALUES (?)", (name,)).lastrowid or 0)
        return self._ids[name]

    def forget_from(self, step: int) -> int:
        """Forget this step's whole block and all that follows; from where on the steps have to be told again."""
        start = step // BLOCK * BLOCK
        with self._db:
            self._db.execute("DELETE FROM recent WHERE step >= ?", (start,))
            self._db.execute("DELETE FROM blocks WHERE start >= ?", (start,))
            self._db.execute("DELETE FROM spans WHERE start + width > ?", (start,))
        self._open = None
        return start

    def names(self) -> list[str]:
        """Each figure there is, as they first came."""
        return list(dict.fromkeys((*self._ids, *self._recent())))

    def last_step(self) -> int | None:
        """The last step that was added."""
        recent = self._db.execute("SELECT max(step) FROM recent").fetchone()[0]
        return None if recent is None else int(recent)

    def read(
        self, names: Sequence[str], first: float = 0, last: float | None = None, most: int = MOST
    ) -> dict[str, Curve]:
        """At most so many points each, of the steps from `first` to `last`; a figure that is not there has none."""
        end = self.last_step() or 0
        first, last = max(0, first), end if last is None else min(last, end)
        recent = self._recent()
        curves = {}
        for name in names:
            steps, values = recent.get(name, ((), ()))
            part = within(steps, first, last)
            tail = points(steps[part], values[part])
            width, kept = self._kept(self._ids.get(name), first, last, most - len(tail))
            tail = list(by_width(tail, width).values())
            curves[name] = Curve.of(thinned([*kept, *tail], most))
        return curves

    def _kept(self, key: int | None, first: float, last: float, most: int) -> tuple[int, list[Span]]:
        """What the full blocks hold, and over how many steps each of it is."""
        (number,) = self._db.execute(
            "SELECT coalesce(sum(number), 0) FROM spans WHERE width = 256 AND name = ? AND start BETWEEN ? AND ?",
            (key, first - BLOCK + 1, last),
        ).fetchone()
        if number <= most:
            return 1, list(self._points(key, first, last))
        # The widest that still gives a line one can follow.
        width = next((width for width in reversed(WIDTHS) if (last - first) / width >= FEWEST), WIDTHS[0])
        spans = self._spans(width, key, first, last)
        # The widest spans are made when they are full: what follows the last of them comes from the next finer ones.
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
            yield from points(steps[part], values[part])

    def _recent(self) -> dict[str, tuple[list[int], list[float]]]:
        found: dict[str, tuple[list[int], list[float]]] = {}
        for step, record in self._db.execute("SELECT step, record FROM recent ORDER BY step"):
            for name, value in json.loads(record).items():
                steps, values = found.setdefault(name, ([], []))
                steps.append(step)
                values.append(value)
        return found

    def close(self) -> None:
        self._db.close()
