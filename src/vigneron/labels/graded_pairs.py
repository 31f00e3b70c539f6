"""Pairs by construction, from easy to hard (Curriculum-RLAIF): the column `level` is 1 to 3.

    1  a guided good answer against a guided bad one
    2  a guided good answer against a random one
    3  two random answers, which a judge compares

Levels 1 and 2 need no label: the guides decide.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from vigneron.data.prompts import Row
from vigneron.labels.by_judge import By, pair_row
from vigneron.labels.items import Comparison, in_format_of
from vigneron.labels.revisions import drawn
from vigneron.rubric.comparing import Compared, compare
from vigneron.rubric.principle_prompts import guided_request
from vigneron.rubric.principles import Principle
from vigneron.sources.client import Failure
from vigneron.sources.judges import Judge, TextRequest
from vigneron.sources.parents import conversation

SIDES = {1: ("good", "bad"), 2: ("good", "random"), 3: ("random", "other")}
LEVELS = tuple(SIDES)


@dataclass
class GradedPairs:
    """Rows by level, and what was left out: a missing answer or label, or two equal texts."""

    rows: list[Row] = field(default_factory=list)
    missing: int = 0
    equal: int = 0
    why: str | None = None


def graded_pairs(
    model: Judge,
    judge: Judge | None,
    prompts: Sequence[Any],
    principles: Sequence[Principle],
    *,
    levels: Sequence[int] = LEVELS,
    temperature: float = 1.0,
    seed: int = 0,
) -> GradedPairs:
    """One pair for each prompt and level, in the order of levels. Level 3 needs a judge."""
    by = [drawn(principles, seed, number) for number in range(len(prompts))]

    def answers(side: str) -> list[str | Failure]:
        guide: Literal["good", "bad"] | None = "good" if side == "good" else "bad" if side == "bad" else None
        if guide is not None:
            return model.complete([guided_request(p, prompt, guide) for p, prompt in zip(by, prompts, strict=True)])
        random = TextRequest(temperature, sample=2 * seed + (side == "other"))
        return model.complete([conversation(None, p) for p in prompts], random)

    texts_of = {side: answers(side) for side in dict.fromkeys(side for level in levels for side in SIDES[level])}
    graded = GradedPairs()
    for level in levels:
        pairs: list[tuple[int, str, str]] = []
        for number, (one, two) in enumerate(zip(*(texts_of[side] for side in SIDES[level]), strict=True)):
            if isinstance(one, Failure) or isinstance(two, Failure):
                graded.missing += 1
                graded.why = graded.why or (one.why if isinstance(one, Failure) else two.why)
            elif one.strip() == two.strip():
                graded.equal += 1
            else:
                pairs.append((number, one, two))
        probabilities: list[float | None] = [1.0] * len(pairs)
        if level == 3:
            assert judge is not None
            comparisons = [Compared(prompts[n], one, two, by[n].text) for n, one, two in pairs]
            preferences = compare(judge, comparisons)
            probabilities = [preference.probability for preference in preferences]
            graded.why = graded.why or next((p.why for p in preferences if p.probability is None), None)
        for (number, one, two), probability in zip(pairs, probabilities, strict=True):
            if probability is None:
                graded.missing += 1
                continue
            texts = in_format_of(prompts[number], [one, two])
            named = {"principle": by[number].name, "level": level}
            by_whom: By = "judge" if level == 3 else "construction"
            graded.rows.append(
                pair_row(Comparison(prompts[number], tuple(texts)), round(probability, 6), by_whom, **named)
            )
    return graded
