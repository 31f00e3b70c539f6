"""The index of curves while a run writes it."""

import sqlite3
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any

from vigneron.folder.curves import CURVES, CurveStore
from vigneron.folder.run_folder import RunFolder
from vigneron.folder.status import last_records


class CurveIndex:
    """The store while a run writes it. Whatever goes wrong with it is said once, and the run goes on without."""

    def __init__(self, folder: RunFolder, tell: Callable[[str], None]) -> None:
        self._folder, self._tell = folder, tell
        self._store: CurveStore | None = None

    def __enter__(self) -> "CurveIndex":
        """Bring it in line with metrics.jsonl: after a kill, a resume, or in a folder that never had one."""
        try:
            try:
                self._store = _in_line(self._folder)
            except sqlite3.DatabaseError:  # broken: it is made again
                self._remove()
                self._store = _in_line(self._folder)
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
        self._tell(f"the index of curves cannot be written ({error}): metrics.jsonl has everything, pages open slower")

    def _remove(self) -> None:
        for end in ("", "-wal", "-shm"):
            with suppress(OSError):  # readers see that it is behind
                (self._folder.path / f"{CURVES}{end}").unlink(missing_ok=True)


def _in_line(folder: RunFolder) -> CurveStore:
    store = CurveStore(folder.path)
    try:
        records = last_records(folder.path / "metrics.jsonl")
        logged, kept = (records[-1]["step"] if records else -1), store.last_step()
        if kept != logged:
            start = store.forget_from(min(logged, -1 if kept is None else kept))
            store.add(record for record in folder.metrics() if record["step"] >= start)
    except BaseException:  # whatever it was: raised on
        store.close()
        raise
    return store
