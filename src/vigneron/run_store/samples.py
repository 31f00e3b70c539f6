"""A run's samples in SQLite: the viewer pages, filters and sorts without reading all of them."""

import hashlib
import json
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vigneron.errors import UserError, first_line
from vigneron.files import writing
from vigneron.run_store.sqlite_files import QUERY_SECONDS, open_read_only, open_writable
from vigneron.run_store.token_values import TokenValues, pack

Kind = Literal["train", "eval"]


@dataclass(frozen=True)
class Sample:
    """One prompt with one completion, its reward and what else was recorded of it."""

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


# Lookup tables, so that no query scans all samples: the steps, and each prompt's samples by a short hash of the prompt
# (a tenth of the size of an index over whole prompts).
LOOKUPS = {
    "steps": "kind, step, PRIMARY KEY (kind, step)",
    "prompts": "key INTEGER, step, kind, sample, PRIMARY KEY (key, step, kind, sample)",
}
TOKENS = "step, kind, sample, record BLOB, PRIMARY KEY (step, kind, sample)"
"""Columns of the table of token values (`token_values.pack`); a store of an older version has none."""
LOOKUP_ROWS = {
    "steps": "SELECT DISTINCT kind, step FROM samples",
    "prompts": "SELECT prompt_key(prompt), step, kind, sample FROM samples",
}


class SampleStore:
    """`samples.sqlite` in the run's folder."""

    COLUMNS = tuple(Sample.__dataclass_fields__)

    def __init__(self, folder: Path, *, read_only: bool = False) -> None:
        self._path = path = folder / "samples.sqlite"
        with reading(path):
            self._db = open_read_only(path) if read_only else open_writable(path)
        if not read_only:
            with reading(path), writing(path):
                self._db.execute("PRAGMA journal_mode = WAL")
                self._db.execute("PRAGMA synchronous = NORMAL")
                self._db.execute(
                    f"CREATE TABLE IF NOT EXISTS samples ({', '.join(self.COLUMNS)}, PRIMARY KEY (step, kind, sample))"
                )
                self._create_lookups()

    def _create_lookups(self) -> None:
        """Once; in a store of an older version they are filled from its samples."""
        self._db.create_function("prompt_key", 1, prompt_key, deterministic=True)
        with self._db:
            for name, columns in LOOKUPS.items():
                if not self._has(name):
                    self._db.execute(f"CREATE TABLE {name} ({columns}) WITHOUT ROWID")
                    self._db.execute(f"INSERT INTO {name} {LOOKUP_ROWS[name]}")
            self._db.execute(f"CREATE TABLE IF NOT EXISTS tokens ({TOKENS}) WITHOUT ROWID")

    def _has(self, table: str) -> bool:
        return self._db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone() is not None

    def add(self, samples: Sequence[Sample]) -> None:
        rows = [
            tuple(json.dumps(v, default=str) if name == "extras" else v for name, v in vars(s).items()) for s in samples
        ]
        keys = {prompt: prompt_key(prompt) for prompt in {s.prompt for s in samples}}
        places = [(keys[s.prompt], s.step, s.kind, s.sample) for s in samples]
        marks = ", ".join("?" * len(self.COLUMNS))
        with writing(self._path), self._db:
            self._db.executemany(f"INSERT OR REPLACE INTO samples VALUES ({marks})", rows)
            self._db.executemany("INSERT OR REPLACE INTO prompts VALUES (?, ?, ?, ?)", places)
            self._db.executemany("INSERT OR IGNORE INTO steps VALUES (?, ?)", {(s.kind, s.step) for s in samples})

    def add_tokens(self, step: int, kind: Kind, tokens: Mapping[int, TokenValues]) -> None:
        """By the samples' numbers."""
        rows = [(step, kind, number, pack(values)) for number, values in tokens.items()]
        with writing(self._path), self._db:
            self._db.executemany("INSERT OR REPLACE INTO tokens VALUES (?, ?, ?, ?)", rows)

    def page(self, *, step: int, kind: Kind = "train", limit: int = 100, offset: int = 0) -> list[Sample]:
        with reading(self._path):
            rows = self._db.execute(
                "SELECT * FROM samples WHERE step = ? AND kind = ? ORDER BY sample LIMIT ? OFFSET ?",
                (step, kind, limit, offset),
            )
            return [self._sample(row) for row in rows]

    def steps(self, kind: Kind) -> list[int]:
        with reading(self._path):
            rows = self._db.execute(f"SELECT DISTINCT step FROM {self._steps} WHERE kind = ? ORDER BY step", (kind,))
            return [int(step) for (step,) in rows]

    def scores(self, step: int) -> list[tuple[int, int, bool | None, float | None]]:
        """Of each held-out sample of a step: its number, a key of its answer (its prompt, without one), the checker's
        verdict and the reward."""
        with reading(self._path):
            rows = self._db.execute(
                "SELECT sample, coalesce(answer, prompt), correct, reward FROM samples "
                "WHERE step = ? AND kind = 'eval' ORDER BY sample",
                (step,),
            )
            return [
                (int(n), prompt_key(str(text)), None if c is None else bool(c), _number(r)) for n, text, c, r in rows
            ]

    @property
    def _steps(self) -> str:
        return "steps" if self._has("steps") else "samples"

    def judged_counts(self) -> dict[tuple[str, str], int]:
        """The number of samples that each rubric item judged, by (category, item)."""
        counts: Counter[tuple[str, str]] = Counter()
        with reading(self._path):
            for (extras,) in self._db.execute("SELECT extras FROM samples"):  # faster than SQLite's JSON functions
                scored = json.loads(extras).get("rubric") or {"items": ()}
                counts.update((scored["category"], item) for item in scored["items"])
        return dict(counts)

    def forget_after(self, step: int) -> None:
        with reading(self._path), writing(self._path), self._db:
            for table in ("samples", "tokens", *LOOKUPS):
                self._db.execute(f"DELETE FROM {table} WHERE step > ?", (step,))

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


def prompt_key(prompt: str) -> int:
    return int.from_bytes(hashlib.blake2b(prompt.encode(errors="replace"), digest_size=8).digest(), signed=True)


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn any error of reading a database, which may be damaged, into a UserError."""
    try:
        yield
    except (sqlite3.Error, ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError) as error:
        why = first_line(error)
        if why == "interrupted":
            why = f"a query takes more than {QUERY_SECONDS:g} s"
        raise UserError(f"cannot read '{path}': {why}; move the file away to continue without these samples") from error
