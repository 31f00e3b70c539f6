"""Samples of a run, in SQLite: a viewer pages, filters and sorts without reading all of them."""

import json
import sqlite3
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vigneron.batch import Batch
from vigneron.core.masked import masked_sum
from vigneron.rollout.prompts import completion_text, prompt_text

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


def samples_of(batch: Batch, step: int, kind: Kind) -> list[Sample]:
    answers: Sequence[Any] = batch.columns.get("answer", (None,) * len(batch))
    rewards = batch.rewards_B.tolist() if batch.rewards_B is not None else [None] * len(batch)
    advantages: list[Any] = [None] * len(batch)
    if batch.advantages_BT is not None:
        trained_BT = batch.trained_BT.cpu()
        means_B = masked_sum(batch.advantages_BT.cpu(), trained_BT) / trained_BT.sum(1)
        advantages = [mean if some else None for mean, some in zip(means_B.tolist(), trained_BT.any(1), strict=True)]
    names, truncated = batch.sample_B.tolist(), batch.truncated_B.tolist()
    return [
        Sample(
            step=step,
            kind=kind,
            sample=names[i],
            prompt=prompt_text(batch.prompts[i]),
            completion=completion_text(batch.completions[i]),
            answer=None if answers[i] is None else str(answers[i]),
            reward=None if rewards[i] != rewards[i] else rewards[i],
            advantage=advantages[i],
            correct=None if batch.correct is None else batch.correct[i],
            truncated=truncated[i],
            extras={name: column[i] for name, column in batch.extras.items()},
        )
        for i in range(len(batch))
    ]


class SampleStore:
    """`samples.sqlite` in the run's folder."""

    COLUMNS = tuple(Sample.__dataclass_fields__)

    def __init__(self, folder: Path, *, read_only: bool = False) -> None:
        path = folder / "samples.sqlite"
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
        with self._db:
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
