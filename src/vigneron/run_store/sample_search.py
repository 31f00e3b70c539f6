"""Queries of the viewer: samples of a step, filtered and sorted, and the samples of one prompt over all steps."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from types import TracebackType
from typing import Any, Literal

from vigneron.run_store.samples import Kind, Sample, SampleStore, prompt_key, reading
from vigneron.run_store.token_values import TokenValues, unpack
from vigneron.values import is_number

Which = Literal["all", "correct", "wrong", "truncated", "missing"]
Sort = Literal["group", "sample", "reward", "-reward", "advantage", "-advantage"]
WHICH: dict[Which, str] = {
    "all": "1",
    "correct": "correct = 1",
    "wrong": "correct = 0",
    "truncated": "truncated = 1",
    "missing": "reward IS NULL",
}
SORTS: dict[Sort, str] = {
    "group": "min(sample) OVER (PARTITION BY prompt), reward DESC NULLS LAST, sample",
    "sample": "sample",
    "reward": "reward ASC NULLS LAST, sample",
    "-reward": "reward DESC NULLS LAST, sample",
    "advantage": "advantage ASC NULLS LAST, sample",
    "-advantage": "advantage DESC NULLS LAST, sample",
}


@dataclass(frozen=True)
class SampleQuery:
    """Which samples of a step to return."""

    step: int
    kind: Kind = "train"
    which: Which = "all"
    search: str = ""
    category: str = ""
    origin: str = ""
    """Of a sample of GRAPE: fresh, revised or demonstrated."""
    reward_from: float | None = None
    reward_to: float | None = None
    sort: Sort = "sample"
    limit: int = 50
    offset: int = 0


BINS = 20


@dataclass(frozen=True)
class Histogram:
    """Equal bins from `low` to `high`; one bin where all values are equal."""

    low: float
    high: float
    counts: list[int]
    mean: float


def histogram(values: Sequence[float]) -> Histogram | None:
    if not values:
        return None
    low, high = min(values), max(values)
    counts = [0] * (BINS if high > low else 1)
    for value in values:
        counts[min(len(counts) - 1, int((value - low) / (high - low) * len(counts))) if high > low else 0] += 1
    return Histogram(low, high, counts, fmean(values))


@dataclass(frozen=True)
class SamplePage:
    samples: list[Sample]
    count: int
    """Of all matching samples, on all pages."""
    categories: list[str]
    """Rubric categories of the step's samples."""
    origins: list[str]
    rewards: Histogram | None
    """Over all matching samples; None where none has a reward."""
    lengths: Histogram | None
    """In characters."""


@dataclass(frozen=True)
class StepsAround:
    """`at` is the step itself, or the nearest one before it (else after it); None where the kind has no samples."""

    first: int | None
    before: int | None
    at: int | None
    after: int | None
    last: int | None


class SampleSearch(SampleStore):
    """Read-only."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, read_only=True)
        self._db.create_function("category_of", 1, category_of, deterministic=True)
        self._db.create_function("origin_of", 1, origin_of, deterministic=True)

    def __enter__(self) -> "SampleSearch":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def find(self, query: SampleQuery) -> SamplePage:
        where, values = _conditions(query)
        of_step = "FROM samples WHERE step = ? AND kind = ?"
        with reading(self._path):
            rows = self._db.execute(
                f"SELECT * FROM samples WHERE {where} ORDER BY {SORTS[query.sort]} LIMIT ? OFFSET ?",
                (*values, query.limit, query.offset),
            )
            samples = [self._sample(row) for row in rows]
            matching = self._db.execute(f"SELECT reward, length(completion) FROM samples WHERE {where}", values)
            sizes = [(_finite(reward), int(length)) for reward, length in matching]
            names = list(
                self._db.execute(f"SELECT category_of(extras), origin_of(extras) {of_step}", (query.step, query.kind))
            )
            return SamplePage(
                samples,
                len(sizes),
                sorted({category for category, _ in names if category is not None}),
                sorted({origin for _, origin in names if origin is not None}),
                histogram([reward for reward, _ in sizes if reward is not None]),
                histogram([length for _, length in sizes]),
            )

    def kinds(self) -> list[Kind]:
        return [kind for kind in ("train", "eval") if self._nearest_step(-1, kind, forward=True) is not None]

    def steps_around(self, kind: Kind, step: int | None) -> StepsAround:
        """The neighbours of a step; None: of the last one."""
        top = 2**62
        first, last = self._nearest_step(-1, kind, forward=True), self._nearest_step(top, kind, forward=False)
        at = last
        if step is not None:
            at = self._nearest_step(step + 1, kind, forward=False)
            at = first if at is None else at
        if at is None:
            return StepsAround(None, None, None, None, None)
        before, after = self._nearest_step(at, kind, forward=False), self._nearest_step(at, kind, forward=True)
        return StepsAround(first, before, at, after, last)

    def _nearest_step(self, step: int, kind: Kind, *, forward: bool) -> int | None:
        """The nearest step with samples of this kind, after or before `step`."""
        after, order = (">", "ASC") if forward else ("<", "DESC")
        with reading(self._path):
            row = self._db.execute(
                f"SELECT step FROM {self._steps} WHERE step {after} ? AND kind = ? ORDER BY step {order} LIMIT 1",
                (step, kind),
            ).fetchone()
            return None if row is None else int(row[0])

    def one(self, step: int, kind: Kind, sample: int) -> Sample | None:
        with reading(self._path):
            row = self._db.execute(
                "SELECT * FROM samples WHERE step = ? AND kind = ? AND sample = ?", (step, kind, sample)
            ).fetchone()
            return None if row is None else self._sample(row)

    def history(self, prompt: str, kind: Kind, limit: int = 500) -> list[Sample]:
        """Samples of one prompt, newest first. A store of an older version is scanned."""
        with reading(self._path):
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

    def tokens(self, step: int, kind: Kind, sample: int) -> TokenValues | None:
        """None where none were kept."""
        with reading(self._path):
            if not self._has("tokens"):
                return None
            row = self._db.execute(
                "SELECT record FROM tokens WHERE step = ? AND kind = ? AND sample = ?", (step, kind, sample)
            ).fetchone()
            return None if row is None else unpack(row[0])

    def with_tokens(self, step: int, kind: Kind) -> tuple[list[int], int | None]:
        """The samples of a step whose token values were kept, and the nearest step with such samples."""
        with reading(self._path):
            if not self._has("tokens"):
                return [], None
            rows = self._db.execute("SELECT sample FROM tokens WHERE step = ? AND kind = ?", (step, kind))
            near = self._db.execute(
                "SELECT step FROM (SELECT max(step) AS step FROM tokens WHERE step <= ?1 AND kind = ?2 UNION ALL "
                "SELECT min(step) FROM tokens WHERE step >= ?1 AND kind = ?2) "
                "WHERE step IS NOT NULL ORDER BY abs(step - ?1) LIMIT 1",
                (step, kind),
            ).fetchone()
            return [int(sample) for (sample,) in rows], None if near is None else int(near[0])

    def has_at_most(self, limit: int) -> bool:
        """By the highest row id, without counting."""
        with reading(self._path):
            (highest,) = self._db.execute("SELECT max(rowid) FROM samples").fetchone()
            return (highest or 0) <= limit


def _conditions(query: SampleQuery) -> tuple[str, list[Any]]:
    """An SQL condition and the values of its placeholders."""
    conditions = ["step = ?", "kind = ?", WHICH[query.which]]
    values: list[Any] = [query.step, query.kind]
    for condition, value in (
        ("category_of(extras) = ?", query.category or None),
        ("origin_of(extras) = ?", query.origin or None),
        ("reward >= ?", query.reward_from),
        ("reward <= ?", query.reward_to),
    ):
        if value is not None:
            conditions.append(condition)
            values.append(value)
    if query.search:
        conditions.append("(prompt LIKE ? ESCAPE '\\' OR completion LIKE ? ESCAPE '\\' OR answer LIKE ? ESCAPE '\\')")
        values += [_anywhere(query.search)] * 3
    return " AND ".join(conditions), values


def _finite(value: Any) -> float | None:
    return float(value) if is_number(value) else None


def category_of(extras: str) -> str | None:
    """The sample's rubric category, where a rubric scored it."""
    scored = json.loads(extras).get("rubric")
    category = scored.get("category") if isinstance(scored, dict) else None
    return category if isinstance(category, str) else None


def origin_of(extras: str) -> str | None:
    origin = json.loads(extras).get("origin")
    return origin if isinstance(origin, str) else None


def _anywhere(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return f"%{escaped}%"
