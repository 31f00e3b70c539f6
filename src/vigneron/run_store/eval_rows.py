"""Scores of single held-out rows, which intervals over rows need: from a run's samples, or from `eval_rows.jsonl`."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vigneron.run_store.folder import RunFolder
from vigneron.run_store.samples import SampleStore
from vigneron.values import is_number

FILE = "eval_rows.jsonl"
"""In archives and finished jobs of studies, which have no samples."""
KEPT = 10
"""Evaluations whose rows an archive keeps: the last ones."""
SCORES = {"eval/accuracy": "correct", "eval/reward": "reward"}
"""Held-out metrics that are means over rows, and the key of a row's score."""


@dataclass(frozen=True)
class EvalRow:
    """A held-out row at an evaluation. It is named by its position and its answer (its prompt, where it has none), so
    that runs with different prompt templates share their rows."""

    step: int
    name: tuple[int, int]
    correct: float | None
    reward: float | None
    others: Mapping[str, float] = field(default_factory=dict)
    """Scores that a study adds, by name."""

    def score(self, name: str) -> float | None:
        return getattr(self, name) if name in SCORES.values() else self.others.get(name)


def read_eval_rows(path: Path, *, every: bool = False, steps: Sequence[int] | None = None) -> list[EvalRow]:
    """Of the last `KEPT` evaluations after the first step, of every one, or of these steps; of a run without samples,
    those of its file."""
    return list(_of_samples(path, every, steps)) if (path / "samples.sqlite").is_file() else read_kept_rows(path)


def read_kept_rows(path: Path) -> list[EvalRow]:
    """The rows of the file; none where it is missing."""
    return [row for record in RunFolder(path).records(FILE) if (row := _of_record(record)) is not None]


def eval_row_lines(rows: Iterable[EvalRow]) -> str:
    """The text of `FILE`."""
    return "".join(json.dumps(_record(row)) + "\n" for row in rows)


def _record(row: EvalRow) -> dict[str, Any]:
    record = {"step": row.step, "row": list(row.name), "correct": row.correct, "reward": row.reward}
    return {**record, "others": dict(row.others)} if row.others else record


def _of_samples(path: Path, every: bool, wanted: Sequence[int] | None) -> Iterator[EvalRow]:
    store = SampleStore(path, read_only=True)
    try:
        steps = store.steps("eval") if wanted is None else wanted
        for step in steps if every or wanted is not None else [step for step in steps if step > 0][-KEPT:]:
            for sample, key, correct, reward in store.scores(step):
                yield EvalRow(step, (sample, key), None if correct is None else float(correct), reward)
    finally:
        store.close()


def _of_record(record: dict[str, Any]) -> EvalRow | None:
    """None of a line that is not such a row."""
    name, scores = record.get("row"), [record.get("correct"), record.get("reward")]
    if not isinstance(name, list) or [type(part) for part in name] != [int, int]:
        return None
    correct, reward = (float(value) if value is not None and is_number(value) else None for value in scores)
    given = record.get("others")
    others = {str(k): float(v) for k, v in given.items() if is_number(v)} if isinstance(given, dict) else {}
    return EvalRow(record["step"], (name[0], name[1]), correct, reward, others)


def row_means(rows: Sequence[EvalRow], score: str, steps: Sequence[int]) -> dict[tuple[int, int], float]:
    """Each row's mean score over these evaluations; without rows that lack a score in one of them."""
    by_name: dict[tuple[int, int], list[float]] = {}
    wanted = set(steps)
    for row in rows:
        value = row.score(score)
        if row.step in wanted and value is not None:
            by_name.setdefault(row.name, []).append(value)
    return {name: sum(values) / len(values) for name, values in by_name.items() if len(values) == len(wanted)}
