"""Agreement between labellers: the share of equal choices, and kappa, which corrects it for chance.

A rating is a labeller's choice for an item: a completion, or a tie; a skipped item has none. Completions of an item
are in random order unless their source orders them, so two random labellers agree on half of the pairs.
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from vigneron.labels.items import SKIP, Comparison
from vigneron.labels.journal import Labels

Ratings = Sequence[Mapping[str, Hashable]]
"""One mapping per item: labeller → choice."""


@dataclass(frozen=True)
class Agreement:
    """Over the items that at least two labellers rated."""

    labellers: tuple[str, ...]
    items: int
    equal: float | None
    """Share of equal choices over all pairs of labellers of an item, averaged over items."""
    kappa: float | None
    """1 is perfect agreement, 0 is chance level; None if agreement by chance is already 1."""
    measure: str

    def line(self) -> str:
        if self.equal is None:
            return "no item has labels of two people yet"
        kappa = "undefined" if self.kappa is None else f"{self.kappa:.2f}"
        who = " and ".join(self.labellers) if len(self.labellers) == 2 else f"{len(self.labellers)} people"
        return f"{who} agree on {self.equal:.0%} of {self.items} items; {self.measure} {kappa}"


def agreement(labels: Labels) -> Agreement:
    return agreement_of([_votes(labels, item) for item in sorted(labels.items)])


def _votes(labels: Labels, item: str) -> dict[str, Hashable]:
    return {by: choice for by, choice in labels.choices(item).items() if choice != SKIP}


def reward_agreement(labels: Labels, by: str) -> str | None:
    """How often a labeller chose the completion with the highest reward, in words; None if no item can say."""
    agree = []
    for name, item in labels.items.items():
        chosen = labels.choice(name, by)
        rewards = item.rewards if isinstance(item, Comparison) else None
        known = [reward for reward in rewards or () if reward is not None]
        if isinstance(chosen, int) and rewards is not None and len(known) == len(rewards) and len(set(known)) > 1:
            agree.append(rewards[chosen] == max(known))
    if not agree:
        return None
    return f"{by} chose the completion with the highest reward in {sum(agree)} of {len(agree)} items"


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
    """Share of the pairs of labellers with the same choice."""
    n = len(choices)
    return sum(count * (count - 1) for count in Counter(choices).values()) / (n * (n - 1))


def _cohens_chance(shared: Ratings, one: str, other: str) -> float:
    """Chance agreement from each labeller's own distribution of choices."""
    first, second = (Counter(by_person[who] for by_person in shared) for who in (one, other))
    return sum(first[choice] * second[choice] for choice in first) / len(shared) ** 2


def _fleiss_chance(shared: Ratings) -> float:
    """Chance agreement from the pooled distribution of choices. Items may have different numbers of ratings."""
    counts = Counter(choice for by_person in shared for choice in by_person.values())
    return sum((count / counts.total()) ** 2 for count in counts.values())
