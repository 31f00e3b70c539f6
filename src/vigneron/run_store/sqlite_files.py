"""SQLite files of a run's folder, which may come from others: regular files, plain tables, queries with a deadline."""

import sqlite3
import time
from pathlib import Path
from typing import Any

from vigneron.files import check_regular

QUERY_SECONDS = 20.0
"""CPU time of one query of a reader."""
CHECK_EVERY = 20_000
"""Instructions of SQLite between two looks at the clock."""
LONGEST_VALUE = 2**26
BESIDE = ("", "-wal", "-shm", "-journal")


class _Reader(sqlite3.Connection):
    """Interrupts a query after its CPU time; rows that are fetched later count too."""

    deadline = 0.0

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        self.deadline = time.thread_time() + QUERY_SECONDS
        return super().execute(*arguments)

    def guard(self) -> None:
        self.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_VALUE)
        self.set_progress_handler(lambda: time.thread_time() > self.deadline, CHECK_EVERY)


def open_writable(path: Path) -> sqlite3.Connection:
    _check_files(path)
    return _checked(sqlite3.connect(path))


def open_read_only(path: Path) -> sqlite3.Connection:
    """A read-only connection; `immutable` in a read-only folder, where SQLite cannot create its lock files."""
    _check_files(path)
    address = path.resolve().as_uri()
    db = _connect(f"{address}?mode=ro")
    try:
        db.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()
    except sqlite3.OperationalError:
        db.close()
        if not path.is_file() or path.with_name(f"{path.name}-wal").exists():
            raise
        db = _connect(f"{address}?immutable=1")
    except sqlite3.Error:
        db.close()
        raise
    return _checked(db)


def _connect(address: str) -> sqlite3.Connection:
    db = sqlite3.connect(address, uri=True, factory=_Reader)
    db.guard()
    return db


def _check_files(path: Path) -> None:
    """SQLite would wait for a pipe in place of the file, or of one that it opens beside it."""
    for end in BESIDE:
        file = path.with_name(path.name + end)
        try:
            check_regular(file)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise sqlite3.OperationalError(f"{file.name}: {error.strerror}") from error


def _checked(db: sqlite3.Connection) -> sqlite3.Connection:
    """Refuse views, triggers and virtual tables: a query of one runs what it contains, which may never end."""
    try:
        db.execute("PRAGMA trusted_schema = OFF")
        parts = db.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
        for kind, name, sql in parts:
            if kind not in ("table", "index") or str(sql).lstrip().upper().startswith("CREATE VIRTUAL"):
                raise sqlite3.DatabaseError(f"it contains '{str(name)[:60]}', which is not a plain table")
    except BaseException:
        db.close()
        raise
    return db
