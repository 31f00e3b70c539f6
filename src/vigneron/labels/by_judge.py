"""Labels of preference pairs by a judge (RLAIF): both orders averaged, ties kept soft, people's labels first.

With a checker (HRLAIF, Li et al. 2024) the final answers decide where only one of them is right, the judge decides
among right ones, and a pair of wrong ones is left out.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from vigneron.data.pairs import PREFERRED
from vigneron.data.prompts import Row, conversation_text, prompt_text
from vigneron.labels.items import Comparison
from vigneron.labels.revisions import drawn
from vigneron.rubric.comparing import Compared, compare
from vigneron.rubric.principles import Principle
from vigneron.sources.judges import Judge

Check = Callable[[Any, Any], bool | None]
"""`check(prompt, completion)`: whether the answer is right; None where that is not known."""
By = Literal["people", "checker", "judge", "construction"]


@dataclass
class LabelledPairs:
    """Rows in the pairs format, and what was left out."""

    rows: list[Row] = field(default_factory=list)
    missing: int = 0
    why: str | None = None
    both_wrong: int = 0

    @property
    def ties(self) -> int:
        return sum(row.get(PREFERRED) == 0.5 for row in self.rows)

    def count(self, by: By) -> int:
        return sum(row["labelled_by"] == by for row in self.rows)


def pair_row(item: Comparison, probability: float, by: By, **more: Any) -> Row:
    """The better text is `chosen`; of a tie, the first one. `preferred` is its probability."""
    first, second = item.trained(0), item.trained(1)
    chosen, rejected, label = (first, second, probability) if probability >= 0.5 else (second, first, 1 - probability)
    return item.row(chosen=chosen, rejected=rejected, **{PREFERRED: label, "labelled_by": by, **more})


def pair_key(prompt: Any, completions: Sequence[Any]) -> tuple[str, frozenset[str]]:
    """The same for both orders."""
    return prompt_text(prompt), frozenset(conversation_text(text).strip() for text in completions)


def label_pairs(
    judge: Judge,
    comparisons: Sequence[Comparison],
    *,
    principles: Sequence[Principle] = (),
    people: Sequence[Row] = (),
    check: Check | None = None,
    seed: int = 0,
) -> LabelledPairs:
    """`people` are labelled pairs: each is kept, and no judge is called for the same two texts. Of several principles
    one is drawn for each pair, keyed by the pair."""
    labelled = LabelledPairs([{PREFERRED: 1.0, **row, "labelled_by": "people"} for row in people])
    known = {pair_key(row["prompt"], (row["chosen"], row["rejected"])) for row in people}
    judged: list[tuple[Comparison, Principle | None]] = []
    for item in comparisons:
        if pair_key(item.prompt, item.completions) in known:
            continue
        right = _checked(item, check)
        if right == {True, False}:
            first_is_right = check is not None and check(item.prompt, item.completions[0]) is True
            labelled.rows.append(pair_row(item, float(first_is_right), "checker"))
        elif right == {False}:
            labelled.both_wrong += 1
        else:
            judged.append((item, drawn(principles, seed, item.id) if principles else None))
    preferences = compare(judge, [_compared(item, principle) for item, principle in judged])
    for (item, principle), preference in zip(judged, preferences, strict=True):
        if preference.probability is None:
            labelled.missing += 1
            labelled.why = labelled.why or preference.why
            continue
        named: Mapping[str, str] = {} if principle is None else {"principle": principle.name}
        labelled.rows.append(pair_row(item, round(preference.probability, 6), "judge", **named))
    return labelled


def _checked(item: Comparison, check: Check | None) -> set[bool]:
    """The verdicts of both texts; empty where one is not known, so that the judge decides."""
    verdicts = [None if check is None else check(item.prompt, completion) for completion in item.completions]
    return set() if None in verdicts else {bool(verdict) for verdict in verdicts}


def _compared(item: Comparison, principle: Principle | None) -> Compared:
    first, second = (conversation_text(text) for text in item.completions)
    return Compared(item.prompt, first, second, None if principle is None else principle.text)
