"""How far several people agree, and how far beyond chance.

A rating is what someone chose of an item: which completion, or a tie; what was skipped is none. Which completion of an
item comes first is a matter of chance unless its source says otherwise: so is half of the agreement about two of them.
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from vigneron.labels.items import SKIP
from vigneron.labels.journal import Labels

Ratings = Sequence[Mapping[str, Hashable]]
"""For each item, by labeller."""


@dataclass(frozen=True)
class Agreement:
    """Over the items that at least two rated."""

    labellers: tuple[str, ...]
    items: int
    equal: float | None
    """The share of equal choices, over all pairs of people who rated an item, each item counted alike."""
    kappa: float | None
    """1 is perfect, 0 what chance would give; None where chance alone already gives full agreement."""
    measure: str

    def line(self) -> str:
        if self.equal is None:
            return "no item was judged by two people yet"
        kappa = "undefined" if self.kappa is None else f"{self.kappa:.2f}"
        who = " and ".join(self.labellers) if len(self.labellers) == 2 else f"{len(self.labellers)} people"
        return f"{who} agree on {self.equal:.0%} of {self.items} items; {self.measure} {kappa}"


def agreement(labels: Labels) -> Agreement:
    return agreement_of([_votes(labels, item) for item in sorted(labels.items)])


def _votes(labels: Labels, item: str) -> dict[str, Hashable]:
    return {by: choice for by, choice in labels.choices(item).items() if choice != SKIP}


def agreement_of(ratings: Ratings) -> Agreement:
    shared = [by_person for by_person in ratings if len(by_person) > 1]
    people = tuple(sorted({by for by_person in shared for by in by_person}))
    two = len(people) == 2
    measure = "Cohen's kappa" if two else "Fleiss' kappa"
    if not shared:
        return Agreement(people, 0, None, None, measure)
    equal = fmean(_equal(list(by_person.values())) for by_person in shared)
    by_chance = _cohens_chance(shared, *people) if two else _fleiss_chance(shared)
    kappa = (equal - by_chance) / (1 - by_chance) if by_chance < 1 else None
    return Agreement(people, len(shared), equal, kappa, measure)


def _equal(choices: Sequence[Hashable]) -> float:
    """The share of pairs of people who chose the same."""
    n = len(choices)
    return sum(count * (count - 1) for count in Counter(choices).values()) / (n * (n - 1))


def _cohens_chance(shared: Ratings, one: str, other: str) -> float:
    """Each person's own habits."""
    first, second = (Counter(by_person[who] for by_person in shared) for who in (one, other))
    return sum(first[choice] * second[choice] for choice in first) / len(shared) ** 2


def _fleiss_chance(shared: Ratings) -> float:
    """Everybody's together. Items need not have the same number of ratings; where they have, it is Fleiss' own."""
    counts = Counter(choice for by_person in shared for choice in by_person.values())
    return sum((count / counts.total()) ** 2 for count in counts.values())
