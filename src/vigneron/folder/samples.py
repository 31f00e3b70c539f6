"""Samples of a run, in SQLite: a viewer pages, filters and sorts without reading all of them."""

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vigneron.errors import UserError

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
        self._path = path = folder / "samples.sqlite"
        with readable(path):
            self._db = (
                sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True) if read_only else sqlite3.connect(path)
            )
            if not read_only:
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
        with self._db:
            self._db.executemany(f"INSERT OR REPLACE INTO samples VALUES ({marks})", rows)

    def page(self, *, step: int, kind: Kind = "train", limit: int = 100, offset: int = 0) -> list[Sample]:
        with readable(self._path):
            rows = self._db.execute(
                "SELECT * FROM samples WHERE step = ? AND kind = ? ORDER BY sample LIMIT ? OFFSET ?",
                (step, kind, limit, offset),
            )
            return [self._sample(row) for row in rows]

    def steps(self, kind: Kind) -> list[int]:
        with readable(self._path):
            rows = self._db.execute("SELECT DISTINCT step FROM samples WHERE kind = ? ORDER BY step", (kind,))
            return [int(step) for (step,) in rows]

    def times_asked(self) -> dict[tuple[str, str], int]:
        """Of how many samples each item of a rubric was asked, by category and item."""
        counts: Counter[tuple[str, str]] = Counter()
        with readable(self._path):
            for (extras,) in self._db.execute("SELECT extras FROM samples"):  # quicker than SQLite's own JSON
                said = json.loads(extras).get("rubric") or {"items": ()}
                counts.update((said["category"], item) for item in said["items"])
        return dict(counts)

    def forget_after(self, step: int) -> None:
        with readable(self._path), self._db:
            self._db.execute("DELETE FROM samples WHERE step > ?", (step,))

    def close(self) -> None:
        self._db.close()

    def _sample(self, row: tuple[Any, ...]) -> Sample:
        values = dict(zip(self.COLUMNS, row, strict=True))
        correct, answer, extras = values["correct"], values["answer"], json.loads(values["extras"])
        return Sample(
            step=int(values["step"]),
            kind="eval" if values["kind"] == "eval" else "train",
            sample=int(values["sample"]),
            prompt=str(values["prompt"]),
            completion=str(values["completion"]),
            answer=None if answer is None else str(answer),
            reward=_number(values["reward"]),
            advantage=_number(values["advantage"]),
            correct=None if correct is None else bool(correct),
            truncated=bool(values["truncated"]),
            extras=extras if isinstance(extras, dict) else {},
        )


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Around whatever reads a database: it may be damaged, or hold something else than was written."""
    try:
        yield
    except (sqlite3.Error, ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"cannot read '{path}': {reason}; moved away, the run goes on without its samples") from error
