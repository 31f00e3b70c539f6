"""Samples that a report shows in full: the prompt, the completion, and each item's score and critique."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vigneron.run_store.samples import Kind, Sample, SampleStore

KINDS: dict[Kind, str] = {"train": "training", "eval": "held out, greedy"}
MAX_SAMPLES = 5_000
"""Of a step, among which the best and the worst are chosen."""


@dataclass(frozen=True)
class ItemVerdict:
    """One item's verdict on a sample; `why` is the reason where it has no score."""

    item: str
    score: float | None
    confidence: float | None
    critique: str
    reasoning: str
    why: str | None

    @classmethod
    def of(cls, name: str, stored: Mapping[str, Any]) -> "ItemVerdict":
        score = stored.get("score")
        return cls(
            name,
            score,
            None if score is None else stored.get("confidence"),
            stored.get("critique", ""),
            stored.get("reasoning", ""),
            stored.get("why"),
        )


@dataclass(frozen=True)
class ShownSample:
    sample: Sample
    place: str
    category: str
    version: str
    origin: str | None
    verdicts: tuple[ItemVerdict, ...]


@dataclass(frozen=True)
class Stage:
    title: str
    samples: list[ShownSample]


def stages(store: SampleStore) -> list[Stage]:
    """The best and the worst of each category in the first and in the last step, training and held out."""
    stages = []
    for kind, title in KINDS.items():
        steps = store.steps(kind)
        for step in dict.fromkeys((*steps[:1], *steps[-1:])):
            samples = best_and_worst(store.page(step=step, kind=kind, limit=MAX_SAMPLES))
            if samples:
                stages.append(Stage(f"{title}, step {step}", samples))
    return stages


def best_and_worst(samples: Iterable[Sample]) -> list[ShownSample]:
    """The best and the worst of each category; equal samples once, samples without a reward not at all."""
    by_category: dict[str, dict[tuple[str, str], Sample]] = {}
    for sample in samples:
        scored = sample.extras.get("rubric")
        if isinstance(scored, Mapping) and sample.reward is not None:
            by_category.setdefault(scored["category"], {}).setdefault((sample.prompt, sample.completion), sample)
    each = 2 if len(by_category) <= 2 else 1
    return [shown for some in by_category.values() for shown in _ends(list(some.values()), each)]


def _ends(samples: Sequence[Sample], each: int) -> list[ShownSample]:
    ranked = sorted(samples, key=lambda sample: -(sample.reward or 0.0))
    best = ranked[: min(each, (len(ranked) + 1) // 2)]
    worst = ranked[len(best) :][-each:]
    return [*(_shown(sample, "best") for sample in best), *(_shown(sample, "worst") for sample in worst)]


def _shown(sample: Sample, place: str) -> ShownSample:
    scored = sample.extras["rubric"]
    verdicts = tuple(ItemVerdict.of(name, stored) for name, stored in scored["items"].items())
    return ShownSample(sample, place, scored["category"], scored["version"], sample.extras.get("origin"), verdicts)
