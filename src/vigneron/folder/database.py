"""SQLite files of a run's folder, opened to be looked at."""

import sqlite3
from pathlib import Path


def open_read_only(path: Path) -> sqlite3.Connection:
    """Whoever looks changes nothing. Of a folder that cannot be written in, SQLite is told that nobody writes."""
    address = path.resolve().as_uri()
    db = sqlite3.connect(f"{address}?mode=ro", uri=True)
    try:
        db.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()
    except sqlite3.OperationalError:
        db.close()
        if not path.is_file() or path.with_name(f"{path.name}-wal").exists():
            raise
        db = sqlite3.connect(f"{address}?immutable=1", uri=True)
    except sqlite3.Error:
        db.close()
        raise
    return db
