"""A cache of model replies on disk: SQLite with JSON values, written as each reply arrives. Failures are not cached."""

import hashlib
import json
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

from vigneron.errors import UserError


def answer_key(model: str, source: str, messages: Sequence[Mapping[str, str]], parameters: Mapping[str, Any]) -> str:
    """`source` is the endpoint's URL, or the identity of a local model's weights."""
    request = {"model": model, "source": source, "messages": list(messages), "parameters": dict(parameters)}
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()


class AnswerCache:
    """Safe to use from several threads and several processes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._store = sqlite3.connect(path, timeout=60, check_same_thread=False)
            self._store.execute("PRAGMA journal_mode = WAL")
            self._store.execute("PRAGMA synchronous = NORMAL")
            self._store.execute("CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, value TEXT NOT NULL)")
        except (OSError, sqlite3.Error) as error:
            raise self._broken(error) from error

    def get(self, key: str) -> str | None:
        try:
            with self._lock:
                row = self._store.execute("SELECT value FROM answers WHERE key = ?", (key,)).fetchone()
            return None if row is None else str(json.loads(row[0])["answer"])
        except (sqlite3.Error, ValueError, KeyError, TypeError) as error:
            raise self._broken(error) from error

    def put(self, key: str, answer: str, model: str) -> None:
        """Durable once this returns, even if the process is killed."""
        value = json.dumps({"answer": answer, "model": model}, ensure_ascii=False)
        try:
            with self._lock, self._store:
                self._store.execute("INSERT OR REPLACE INTO answers VALUES (?, ?)", (key, value))
        except sqlite3.Error as error:
            raise self._broken(error) from error

    def close(self) -> None:
        self._store.close()

    def _broken(self, error: Exception) -> UserError:
        return UserError(
            f"cannot use the answer cache '{self._path}': {error} "
            "(check its folder's permissions and free space, delete the file if it is damaged, or set VIGNERON_CACHE)"
        )
