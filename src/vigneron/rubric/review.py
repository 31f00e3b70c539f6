"""Which items of a rubric are weak: by what the judge itself says of them, and by what people say.

A line for each item under each version of the rubric: two versions may ask different things under one name.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any

from vigneron.errors import UserError, did_you_mean

LOW_CONFIDENCE = 0.5
FAILS_OFTEN = 0.05
"""The share at which a run stops by default."""
NEVER_VARIES = 1e-6
FEW = 8
"""Fewer scores than this may be alike by chance."""
DISAGREES = 0.25
UNLIKE_PEOPLE = 0.3
PAIRS = 5
"""Fewer labels than this say little about a correlation."""
LABEL_COLUMNS = ("prompt", "completion", "item", "score")


@dataclass(frozen=True)
class Judged:
    """What one item gave one sample. `score` None: it failed."""

    category: str
    item: str
    version: str
    prompt: str
    completion: str
    score: float | None
    confidence: float


@dataclass(frozen=True)
class Label:
    """What a person gave. `category` None: the row named none."""

    category: str | None
    item: str
    prompt: str
    completion: str
    score: float


@dataclass(frozen=True)
class Reviewed:
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
    """None where either side never varies, or there are too few pairs."""
    weak: tuple[str, ...]
    """Why, in a few words each; empty for an item that nothing speaks against."""


def judged(prompt: str, completion: str, rubric: Any) -> list[Judged]:
    """Of what is kept with a sample under `rubric`. What is not of its shape is passed over."""
    if not isinstance(rubric, Mapping) or not isinstance(rubric.get("items"), Mapping):
        return []
    category, version = str(rubric.get("category")), str(rubric.get("version"))
    return [
        Judged(category, str(name), version, prompt, completion, said.get("score"), float(said.get("confidence", 0.0)))
        for name, said in rubric["items"].items()
        if isinstance(said, Mapping)
    ]


def review(found: Iterable[Judged], labels: Sequence[Label] = ()) -> list[Reviewed]:
    """The weak ones first: those with the most against them, then by disagreement and want of confidence."""
    by_item: defaultdict[tuple[str, str, str], list[Judged]] = defaultdict(list)
    for one in found:
        by_item[one.category, one.item, one.version].append(one)
    people = _by_people(labels)
    reviewed = [_reviewed(key, of_item, people) for key, of_item in by_item.items()]
    return sorted(reviewed, key=_strength)


def unmatched(found: Iterable[Judged], labels: Sequence[Label]) -> int:
    """Labels that belong to no score."""
    known = {key for one in found if one.score is not None for key in _keys(one)}
    return sum((label.category, label.item, label.prompt, label.completion) not in known for label in labels)


def _keys(one: Judged) -> list[tuple[str | None, str, str, str]]:
    """A label may leave out the category, and who speaks in a prompt of one turn."""
    prompts = {one.prompt, one.prompt.removeprefix("user: ")}
    return [(category, one.item, p, one.completion) for category in (one.category, None) for p in prompts]


def _by_people(labels: Sequence[Label]) -> dict[tuple[str | None, str, str, str], float]:
    """Of several people, their mean."""
    given: defaultdict[tuple[str | None, str, str, str], list[float]] = defaultdict(list)
    for label in labels:
        given[label.category, label.item, label.prompt, label.completion].append(label.score)
    return {key: fmean(scores) for key, scores in given.items()}


def _reviewed(
    key: tuple[str, str, str], of_item: Sequence[Judged], people: Mapping[tuple[str | None, str, str, str], float]
) -> Reviewed:
    have = [one for one in of_item if one.score is not None]
    scores = [float(one.score) for one in have if one.score is not None]
    pairs = {
        (one.prompt, one.completion): (float(one.score), people[by])
        for one in have
        for by in _keys(one)
        if by in people and one.score is not None
    }
    said = [pair[0] for pair in pairs.values()]
    wanted = [pair[1] for pair in pairs.values()]
    figures: dict[str, Any] = {
        "scored": len(scores),
        "failed": len(of_item) - len(scores),
        "score": fmean(scores) if scores else None,
        "spread": pstdev(scores) if scores else None,
        "confidence": fmean(one.confidence for one in have) if have else None,
        "labelled": len(pairs),
        "disagreement": fmean(abs(a - b) for a, b in pairs.values()) if pairs else None,
        "correlation": correlation(said, wanted) if len(pairs) >= PAIRS else None,
    }
    return Reviewed(*key, **figures, weak=tuple(_weak(**figures)))


def correlation(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Pearson's; None where a side never varies."""
    if len(one) < 2 or pstdev(one) < NEVER_VARIES or pstdev(other) < NEVER_VARIES:
        return None
    means = fmean(one), fmean(other)
    shared = fmean((a - means[0]) * (b - means[1]) for a, b in zip(one, other, strict=True))
    return shared / (pstdev(one) * pstdev(other))


def _weak(
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
    if disagreement is not None and disagreement > DISAGREES:
        yield f"disagrees with people (by {disagreement:.2f} on average)"
    if correlation is not None and correlation < UNLIKE_PEOPLE:
        yield "does not rise and fall with people's scores"
    if confidence < LOW_CONFIDENCE:
        yield "low confidence"
    if spread < NEVER_VARIES and scored >= FEW:
        yield f"never varies (always {score:.2f})"
    if failed > FAILS_OFTEN * (scored + failed):
        yield f"fails often ({failed} of {scored + failed})"


def _strength(one: Reviewed) -> tuple[Any, ...]:
    against = (one.disagreement or 0.0) + 1.0 - (one.confidence or 0.0)
    return -len(one.weak), -against, one.category, one.item, one.version


def labels_of(rows: Sequence[Mapping[str, Any]], where: str) -> list[Label]:
    """Rows with prompt, completion, item and score, and a category where two categories have an item of that name."""
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
            raise UserError(f"{here}: {column} is neither a text nor messages")
    try:
        score = float(row["score"])
    except (TypeError, ValueError):
        score = -1.0
    if not 0 <= score <= 1 or isinstance(row["score"], bool):
        raise UserError(f"{here}: score is {row['score']!r:.40}, not a number from 0 to 1")
    category = row.get("category")
    named = str(category) if category not in (None, "") else None
    return Label(named, str(row["item"]), row["prompt"], row["completion"], score)
