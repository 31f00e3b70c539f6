"""Samples of a run, in SQLite: a viewer pages, filters and sorts without reading all of them."""

import json
import sqlite3
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vigneron.files import writing

Kind = Literal["train", "eval"]


@dataclass(frozen=True)
class Sample:
    """One prompt with one completion, as a person looks at it."""

    step: int
    kind: Kind
    sample: int
    prompt: str
    completion: str
    answer: str | None
    reward: float | None
    advantage: float | None
    correct: bool | None
    truncated: bool
    extras: dict[str, Any]


class SampleStore:
    """`samples.sqlite` in the run's folder."""

    COLUMNS = tuple(Sample.__dataclass_fields__)

    def __init__(self, folder: Path, *, read_only: bool = False) -> None:
        path = folder / "samples.sqlite"
        self._db = (
            sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True) if read_only else sqlite3.connect(path)
        )
        self._path = path
        if not read_only:
            with writing(path):
                self._db.execute("PRAGMA journal_mode = WAL")
                self._db.execute("PRAGMA synchronous = NORMAL")
                self._db.execute(
                    f"CREATE TABLE IF NOT EXISTS samples ({', '.join(self.COLUMNS)}, PRIMARY KEY (step, kind, sample))"
                )

    def add(self, samples: Sequence[Sample]) -> None:
        rows = [
            tuple(json.dumps(v, default=str) if name == "extras" else v for name, v in vars(s).items()) for s in samples
        ]
        marks = ", ".join("?" * len(self.COLUMNS))
        with writing(self._path), self._db:
            self._db.executemany(f"INSERT OR REPLACE INTO samples VALUES ({marks})", rows)

    def page(self, *, step: int, kind: Kind = "train", limit: int = 100, offset: int = 0) -> list[Sample]:
        rows = self._db.execute(
            "SELECT * FROM samples WHERE step = ? AND kind = ? ORDER BY sample LIMIT ? OFFSET ?",
            (step, kind, limit, offset),
        )
        return [self._sample(row) for row in rows]

    def steps(self, kind: Kind) -> list[int]:
        rows = self._db.execute("SELECT DISTINCT step FROM samples WHERE kind = ? ORDER BY step", (kind,))
        return [step for (step,) in rows]

    def times_asked(self) -> dict[tuple[str, str], int]:
        """Of how many samples each item of a rubric was asked, by category and item."""
        counts: Counter[tuple[str, str]] = Counter()
        for (extras,) in self._db.execute("SELECT extras FROM samples"):  # quicker than SQLite's own JSON
            said = json.loads(extras).get("rubric") or {"items": ()}
            counts.update((said["category"], item) for item in said["items"])
        return dict(counts)

    def forget_after(self, step: int) -> None:
        with writing(self._path), self._db:
            self._db.execute("DELETE FROM samples WHERE step > ?", (step,))

    def close(self) -> None:
        self._db.close()

    def _sample(self, row: tuple[Any, ...]) -> Sample:
        values = dict(zip(self.COLUMNS, row, strict=True))
        correct = values["correct"]
        return Sample(
            **values
            | {
                "extras": json.loads(values["extras"]),
                "correct": None if correct is None else bool(correct),
                "truncated": bool(values["truncated"]),
            }
        )
