"""Samples as a page asks for them: filtered, sorted, step by step, and one prompt's over all steps."""

import json
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from vigneron.run_store.samples import Kind, Sample, SampleStore, prompt_key

Which = Literal["all", "correct", "wrong", "truncated", "missing"]
Sort = Literal["sample", "reward", "-reward", "advantage", "-advantage"]
WHICH: dict[Which, str] = {
    "all": "1",
    "correct": "correct = 1",
    "wrong": "correct = 0",
    "truncated": "truncated = 1",
    "missing": "reward IS NULL",
}
SORTS: dict[Sort, str] = {
    "sample": "sample",
    "reward": "reward ASC NULLS LAST, sample",
    "-reward": "reward DESC NULLS LAST, sample",
    "advantage": "advantage ASC NULLS LAST, sample",
    "-advantage": "advantage DESC NULLS LAST, sample",
}


@dataclass(frozen=True)
class Asked:
    """What samples of a step a page shows."""

    step: int
    kind: Kind = "train"
    which: Which = "all"
    search: str = ""
    category: str = ""
    sort: Sort = "sample"
    limit: int = 50
    offset: int = 0


@dataclass(frozen=True)
class Found:
    samples: list[Sample]
    count: int
    """Of all that fit, on whatever page."""
    categories: list[str]
    """Of the step's samples, where a rubric scored them."""


@dataclass(frozen=True)
class StepsAround:
    """`at` is the step itself, or the nearest before it (else after it); None where there is no sample of the kind."""

    first: int | None
    before: int | None
    at: int | None
    after: int | None
    last: int | None


class SampleSearch(SampleStore):
    """Reads only."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, read_only=True)
        self._db.create_function("category_of", 1, category_of, deterministic=True)

    def __enter__(self) -> "SampleSearch":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def find(self, asked: Asked) -> Found:
        conditions = ["step = ?", "kind = ?", WHICH[asked.which]]
        values: list[Any] = [asked.step, asked.kind]
        if asked.category:
            conditions.append("category_of(extras) = ?")
            values.append(asked.category)
        if asked.search:
            conditions.append(
                "(prompt LIKE ? ESCAPE '\\' OR completion LIKE ? ESCAPE '\\' OR answer LIKE ? ESCAPE '\\')"
            )
            values += [_anywhere(asked.search)] * 3
        where = " AND ".join(conditions)
        (count,) = self._db.execute(f"SELECT count(*) FROM samples WHERE {where}", values).fetchone()
        rows = self._db.execute(
            f"SELECT * FROM samples WHERE {where} ORDER BY {SORTS[asked.sort]} LIMIT ? OFFSET ?",
            (*values, asked.limit, asked.offset),
        )
        samples = [self._sample(row) for row in rows]
        of_step = self._db.execute(
            "SELECT DISTINCT category_of(extras) FROM samples WHERE step = ? AND kind = ?", (asked.step, asked.kind)
        )
        return Found(samples, count, sorted(name for (name,) in of_step if name is not None))

    def kinds(self) -> list[Kind]:
        return [kind for kind in ("train", "eval") if self._beyond(-1, kind, forward=True) is not None]

    def steps_around(self, kind: Kind, step: int | None) -> StepsAround:
        """`step` None: the last one."""
        top = 2**62
        first, last = self._beyond(-1, kind, forward=True), self._beyond(top, kind, forward=False)
        at = last
        if step is not None:
            at = self._beyond(step + 1, kind, forward=False)
            at = first if at is None else at
        if at is None:
            return StepsAround(None, None, None, None, None)
        before, after = self._beyond(at, kind, forward=False), self._beyond(at, kind, forward=True)
        return StepsAround(first, before, at, after, last)

    def _beyond(self, step: int, kind: Kind, *, forward: bool) -> int | None:
        """The nearest step with samples of a kind."""
        after, order = (">", "ASC") if forward else ("<", "DESC")
        row = self._db.execute(
            f"SELECT step FROM {self._steps} WHERE step {after} ? AND kind = ? ORDER BY step {order} LIMIT 1",
            (step, kind),
        ).fetchone()
        return None if row is None else int(row[0])

    def one(self, step: int, kind: Kind, sample: int) -> Sample | None:
        row = self._db.execute(
            "SELECT * FROM samples WHERE step = ? AND kind = ? AND sample = ?", (step, kind, sample)
        ).fetchone()
        return None if row is None else self._sample(row)

    def history(self, prompt: str, kind: Kind, limit: int = 500) -> list[Sample]:
        """Samples of one prompt, the newest first. A store of an older version is gone through whole."""
        if self._has("prompts"):
            rows = self._db.execute(
                "SELECT samples.* FROM prompts JOIN samples USING (step, kind, sample) "
                "WHERE prompts.key = ? AND prompts.kind = ? AND prompt = ? "
                "ORDER BY prompts.step DESC, prompts.sample LIMIT ?",
                (prompt_key(prompt), kind, prompt, limit),
            )
        else:
            rows = self._db.execute(
                "SELECT * FROM samples WHERE prompt = ? AND kind = ? ORDER BY step DESC, sample LIMIT ?",
                (prompt, kind, limit),
            )
        return [self._sample(row) for row in rows]

    def are_few(self, most: int) -> bool:
        """Without counting them."""
        (highest,) = self._db.execute("SELECT max(rowid) FROM samples").fetchone()
        return (highest or 0) <= most


def category_of(extras: str) -> str | None:
    """Of a rubric, where one scored the sample."""
    said = json.loads(extras).get("rubric")
    category = said.get("category") if isinstance(said, dict) else None
    return category if isinstance(category, str) else None


def _anywhere(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return f"%{escaped}%"
