"""A run's curves for whoever looks: from the index where there is one that can be trusted, else from metrics.jsonl."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Protocol

from vigneron.files import parsed_json
from vigneron.folder.curve_points import MOST, Curve, points, thinned, values_of, within
from vigneron.folder.curves import CURVES, CurveStore
from vigneron.folder.status import last_records

LOGS_KEPT = 32


class Curves(Protocol):
    def names(self) -> list[str]: ...
    def last_step(self) -> int | None: ...
    def read(
        self, names: Sequence[str], first: float = 0, last: float | None = None, most: int = MOST
    ) -> dict[str, Curve]: ...
    def close(self) -> None: ...


class CurveLog:
    """metrics.jsonl, read whole."""

    def __init__(self, path: Path) -> None:
        self._columns: dict[str, tuple[list[int], list[float]]] = {}
        self._last: int | None = None
        with path.open("rb") as file:
            for line in file:
                self._add(line)

    def _add(self, line: bytes) -> None:
        """A line that is damaged, or that is being written, is left out."""
        try:
            record = parsed_json(line)
        except ValueError:
            return
        if not isinstance(record, dict) or not isinstance(record.get("step"), int) or not line.endswith(b"\n"):
            return
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
        self, names: Sequence[str], first: float = 0, last: float | None = None, most: int = MOST
    ) -> dict[str, Curve]:
        curves = {}
        for name in names:
            steps, values = self._columns.get(name, ([], []))
            part = within(steps, first, float("inf") if last is None else last)
            curves[name] = Curve.of(thinned(points(steps[part], values[part]), most))
        return curves

    def close(self) -> None:
        """Nothing is held."""


_logs: dict[Path, tuple[tuple[int, int], CurveLog]] = {}
_lock = Lock()


def read_log(path: Path) -> CurveLog:
    """Read again only when the file has changed."""
    with _lock:
        at = path.stat()
        mark = (at.st_size, at.st_mtime_ns)
        kept = _logs.pop(path, None)
        log = kept[1] if kept is not None and kept[0] == mark else CurveLog(path)
        _logs[path] = (mark, log)
        for oldest in list(_logs)[:-LOGS_KEPT]:
            del _logs[oldest]
        return log


def curves_of(folder: Path) -> tuple[Curves | None, str | None]:
    """None: no step has been logged. Beside it a line for the user, where an index is there that is of no use."""
    log, note = folder / "metrics.jsonl", None
    if (folder / CURVES).exists():
        try:
            store = CurveStore(folder, read_only=True)
            if _is_current(store, log):
                return store, None
            store.close()
            note = f"{folder.name}: its index of curves is behind, metrics.jsonl was read instead"
        except sqlite3.Error as error:
            note = f"{folder.name}: its index of curves cannot be read ({error}), metrics.jsonl was read instead"
    return (read_log(log), note) if log.is_file() else (None, note)


def _is_current(store: CurveStore, log: Path) -> bool:
    """A run writes a line of metrics first: the index may be one step behind."""
    logged = [record["step"] for record in last_records(log)[-2:]]
    return not log.exists() or store.last_step() in (logged or [None])
