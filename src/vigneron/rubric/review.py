"""Find the weak items of a rubric, by the judge's own scores and confidences and by people's labels.

Items are reviewed per version of the rubric, since versions may mean different things by one name.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any

from vigneron.errors import UserError, did_you_mean

LOW_CONFIDENCE = 0.5
MAX_FAILED = 0.05
"""The default `missing_limit` of a run."""
MIN_SPREAD = 1e-6
MIN_SCORES = 8
"""Fewer scores than this may be equal by chance."""
MAX_DISAGREEMENT = 0.25
MIN_CORRELATION = 0.3
MIN_PAIRS = 5
"""Fewer labelled samples than this give no correlation."""
LABEL_COLUMNS = ("prompt", "completion", "item", "score")


@dataclass(frozen=True)
class ItemScore:
    """The score of one item for one sample. `score` None: it failed."""

    category: str
    item: str
    version: str
    prompt: str
    completion: str
    score: float | None
    confidence: float


@dataclass(frozen=True)
class Label:
    """A person's score. `category` None: the row has none."""

    category: str | None
    item: str
    prompt: str
    completion: str
    score: float


@dataclass(frozen=True)
class ItemReview:
    """The statistics of one item under one version of the rubric."""

    category: str
    item: str
    version: str
    scored: int
    failed: int
    score: float | None
    spread: float | None
    confidence: float | None
    labelled: int
    disagreement: float | None
    """Mean |judge − person|."""
    correlation: float | None
    """None if either side is constant, or there are too few pairs."""
    weak: tuple[str, ...]
    """The reasons; empty for an item without weaknesses."""


def item_scores(prompt: str, completion: str, rubric: Any) -> list[ItemScore]:
    """From a sample record's `rubric`. Malformed records are skipped."""
    if not isinstance(rubric, Mapping) or not isinstance(rubric.get("items"), Mapping):
        return []
    category, version = str(rubric.get("category")), str(rubric.get("version"))
    return [
        ItemScore(
            category, str(name), version, prompt, completion, item.get("score"), float(item.get("confidence", 0.0))
        )
        for name, item in rubric["items"].items()
        if isinstance(item, Mapping)
    ]


def review(scores: Iterable[ItemScore], labels: Sequence[Label] = ()) -> list[ItemReview]:
    """Weakest first: by the number of weaknesses, then by disagreement and lack of confidence."""
    by_item: defaultdict[tuple[str, str, str], list[ItemScore]] = defaultdict(list)
    for one in scores:
        by_item[one.category, one.item, one.version].append(one)
    people = _by_people(labels)
    reviews = [_review_item(key, of_item, people) for key, of_item in by_item.items()]
    return sorted(reviews, key=_strength)


def unmatched(scores: Iterable[ItemScore], labels: Sequence[Label]) -> int:
    """The number of labels without a matching score."""
    known = {key for one in scores if one.score is not None for key in _keys(one)}
    return sum((label.category, label.item, label.prompt, label.completion) not in known for label in labels)


def _keys(one: ItemScore) -> list[tuple[str | None, str, str, str]]:
    """A label may omit the category, and the role of a prompt of one message."""
    prompts = {one.prompt, one.prompt.removeprefix("user: ")}
    return [(category, one.item, p, one.completion) for category in (one.category, None) for p in prompts]


def _by_people(labels: Sequence[Label]) -> dict[tuple[str | None, str, str, str], float]:
    """The mean over people."""
    given: defaultdict[tuple[str | None, str, str, str], list[float]] = defaultdict(list)
    for label in labels:
        given[label.category, label.item, label.prompt, label.completion].append(label.score)
    return {key: fmean(scores) for key, scores in given.items()}


def _review_item(
    key: tuple[str, str, str], of_item: Sequence[ItemScore], people: Mapping[tuple[str | None, str, str, str], float]
) -> ItemReview:
    have = [one for one in of_item if one.score is not None]
    scores = [float(one.score) for one in have if one.score is not None]
    pairs = {
        (one.prompt, one.completion): (float(one.score), people[by])
        for one in have
        for by in _keys(one)
        if by in people and one.score is not None
    }
    by_judge = [pair[0] for pair in pairs.values()]
    by_people = [pair[1] for pair in pairs.values()]
    statistics: dict[str, Any] = {
        "scored": len(scores),
        "failed": len(of_item) - len(scores),
        "score": fmean(scores) if scores else None,
        "spread": pstdev(scores) if scores else None,
        "confidence": fmean(one.confidence for one in have) if have else None,
        "labelled": len(pairs),
        "disagreement": fmean(abs(a - b) for a, b in pairs.values()) if pairs else None,
        "correlation": correlation(by_judge, by_people) if len(pairs) >= MIN_PAIRS else None,
    }
    return ItemReview(*key, **statistics, weak=tuple(_weaknesses(**statistics)))


def correlation(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Pearson's; None if a side is constant."""
    if len(one) < 2 or pstdev(one) < MIN_SPREAD or pstdev(other) < MIN_SPREAD:
        return None
    means = fmean(one), fmean(other)
    shared = fmean((a - means[0]) * (b - means[1]) for a, b in zip(one, other, strict=True))
    return shared / (pstdev(one) * pstdev(other))


def _weaknesses(
    *,
    scored: int,
    failed: int,
    score: float | None,
    spread: float | None,
    confidence: float | None,
    labelled: int,
    disagreement: float | None,
    correlation: float | None,
) -> Iterable[str]:
    if not scored or score is None or spread is None or confidence is None:
        yield "was never scored"
        return
    if disagreement is not None and disagreement > MAX_DISAGREEMENT:
        yield f"disagrees with people (by {disagreement:.2f} on average)"
    if correlation is not None and correlation < MIN_CORRELATION:
        yield "correlates weakly with people's scores"
    if confidence < LOW_CONFIDENCE:
        yield "low confidence"
    if spread < MIN_SPREAD and scored >= MIN_SCORES:
        yield f"never varies (always {score:.2f})"
    if failed > MAX_FAILED * (scored + failed):
        yield f"fails often ({failed} of {scored + failed})"


def _strength(one: ItemReview) -> tuple[Any, ...]:
    against = (one.disagreement or 0.0) + 1.0 - (one.confidence or 0.0)
    return -len(one.weak), -against, one.category, one.item, one.version


def labels_of(rows: Sequence[Mapping[str, Any]], where: str) -> list[Label]:
    """From rows with prompt, completion, item and score, and a category if several categories have that item."""
    if not rows:
        raise UserError(f"labels: {where} has no rows")
    return [_label(row, f"labels: {where}, row {number}") for number, row in enumerate(rows, start=1)]


def _label(row: Mapping[str, Any], here: str) -> Label:
    for column in LABEL_COLUMNS:
        if row.get(column) is None or (row[column] == "" and column != "completion"):
            hint = did_you_mean(column, row) if column not in row and row else ""
            raise UserError(f"{here} has no '{column}'{hint}")
    for column in ("prompt", "completion"):
        if not isinstance(row[column], str):
            raise UserError(f"{here}: {column} is neither a string nor messages")
    try:
        score = float(row["score"])
    except (TypeError, ValueError):
        score = -1.0
    if not 0 <= score <= 1 or isinstance(row["score"], bool):
        raise UserError(f"{here}: score is {row['score']!r:.40}, not a number from 0 to 1")
    category = row.get("category")
    named = str(category) if category not in (None, "") else None
    return Label(named, str(row["item"]), row["prompt"], row["completion"], score)
