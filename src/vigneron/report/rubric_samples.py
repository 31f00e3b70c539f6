"""Samples shown whole: a question, its answer, and beside it everything that was said of that answer."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vigneron.run_store.samples import Kind, Sample, SampleStore

KINDS: dict[Kind, str] = {"train": "training", "eval": "held out, greedy"}
LOOKED_AT = 5_000
"""Samples of a step among which the best and the worst are looked for."""


@dataclass(frozen=True)
class Judged:
    """One item's words on a sample; of one that failed, why it has no score."""

    item: str
    score: float | None
    confidence: float | None
    critique: str
    reasoning: str
    why: str | None

    @classmethod
    def of(cls, name: str, kept: Mapping[str, Any]) -> "Judged":
        score = kept.get("score")
        return cls(
            name,
            score,
            None if score is None else kept.get("confidence"),
            kept.get("critique", ""),
            kept.get("reasoning", ""),
            kept.get("why"),
        )


@dataclass(frozen=True)
class Shown:
    sample: Sample
    place: str
    category: str
    version: str
    origin: str | None
    judged: tuple[Judged, ...]


@dataclass(frozen=True)
class Stage:
    title: str
    samples: list[Shown]


def stages(store: SampleStore) -> list[Stage]:
    """The best and the worst of each category, in the first and in the last step, trained and held out."""
    found = []
    for kind, title in KINDS.items():
        steps = store.steps(kind)
        for step in dict.fromkeys((*steps[:1], *steps[-1:])):
            samples = picked(store.page(step=step, kind=kind, limit=LOOKED_AT))
            if samples:
                found.append(Stage(f"{title}, step {step}", samples))
    return found


def picked(samples: Iterable[Sample]) -> list[Shown]:
    """Of each category, and of an answer that was given twice only once. What has no reward is neither."""
    by_category: dict[str, dict[tuple[str, str], Sample]] = {}
    for sample in samples:
        said = sample.extras.get("rubric")
        if isinstance(said, Mapping) and sample.reward is not None:
            by_category.setdefault(said["category"], {}).setdefault((sample.prompt, sample.completion), sample)
    each = 2 if len(by_category) <= 2 else 1
    return [shown for some in by_category.values() for shown in _ends(list(some.values()), each)]


def _ends(samples: Sequence[Sample], each: int) -> list[Shown]:
    ranked = sorted(samples, key=lambda sample: -(sample.reward or 0.0))
    best = ranked[: min(each, (len(ranked) + 1) // 2)]
    worst = ranked[len(best) :][-each:]
    return [*(_shown(sample, "best") for sample in best), *(_shown(sample, "worst") for sample in worst)]


def _shown(sample: Sample, place: str) -> Shown:
    said = sample.extras["rubric"]
    judged = tuple(Judged.of(name, kept) for name, kept in said["items"].items())
    return Shown(sample, place, said["category"], said["version"], sample.extras.get("origin"), judged)
