"""The decision rule of `dense_study`. A verdict is given when no run that is missing could change it; until then, "not
yet"."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.paired import Difference, paired_difference
from benchmarks.study_settings import SEEDS, is_final, not_yet
from benchmarks.study_store import mean

EVERYWHERE = ("binary", "cosine", "contrastive", "token-f1")
"""Arms of every cell."""
# Rule 1: the least difference, and the least accuracy of a cell that says something.
PAYS, SAYS_SOMETHING = 0.05, 0.05
SILENT = "nothing is learned"

BySeed = Mapping[int, Sequence[float]]
"""Of an arm: the values of its rows."""


def differ(one: BySeed, other: BySeed) -> Difference | None:
    """Over the seeds that both have; None: none."""
    seeds = sorted(set(one) & set(other))
    return paired_difference([one[seed] for seed in seeds], [other[seed] for seed in seeds]) if seeds else None


def verdict(difference: Difference) -> str:
    """Rule 1."""
    if difference.mean >= PAYS and difference.low > 0:
        return "pays"
    if difference.mean <= -PAYS and difference.high < 0:
        return "costs"
    return "no difference"


def says_something(last: Mapping[str, BySeed]) -> bool | None:
    """Rule 1, of a cell's arms. None: it depends on seeds that are missing, which count as 0 here."""
    best = max((sum(mean(values) for values in own.values()) / len(SEEDS) for own in last.values()), default=0.0)
    if best >= SAYS_SOMETHING:
        return True
    return False if all(len(last.get(arm, {})) == len(SEEDS) for arm in {*EVERYWHERE, *last}) else None


@dataclass(frozen=True)
class Cell:
    """The finished runs of one number of opposites and of samples a step, by arm and seed."""

    level: int
    samples: int
    hits: float | None
    """p₀ × samples. None: p₀ is not measured yet."""
    area: Mapping[str, BySeed]
    last: Mapping[str, BySeed]

    def difference(self, arm: str, other: str) -> Difference | None:
        return differ(self.area.get(arm, {}), self.area.get(other, {}))

    def verdict(self, arm: str, other: str) -> str:
        """Rule 1 for two arms."""
        seeds, says = len(set(self.area.get(arm, {})) & set(self.area.get(other, {}))), says_something(self.last)
        found = self.difference(arm, other)
        if found is None or seeds < len(SEEDS):
            return not_yet(seeds)
        return "not yet (other arms)" if says is None else verdict(found) if says else SILENT


def decides(verdict: str) -> bool:
    return is_final(verdict) and verdict != SILENT


def against_law(verdicts: Mapping[float, str]) -> list[float]:
    """The cells, by p₀ × samples, that rule 2 does not allow."""
    known = {x: v for x, v in sorted(verdicts.items()) if decides(v)}
    return [x for x, v in known.items() if (x < 0.5 and v != "pays") or (x > 2 and v == "pays")]


def law(verdicts: Mapping[float, str]) -> str:
    """Rule 2, from an arm's verdicts in all cells, by p₀ × samples."""
    sides = [[v for x, v in verdicts.items() if x < 0.5], [v for x, v in verdicts.items() if x > 2]]
    tested = all(any(decides(v) for v in side) for side in sides)
    if tested and against_law(verdicts):
        return "fails"
    if not all(is_final(v) for side in sides for v in side):
        return "not yet"
    return "holds" if tested else "not tested"


def crossing_point(differences: Mapping[float, float]) -> float | None:
    """Rule 3: the first p₀ × samples, from below, where the difference falls to 0."""
    cells = sorted(differences.items())
    for (x, before), (next_x, after) in pairwise(cells):
        if before > 0 >= after:
            share = before / (before - after)
            return 10 ** (math.log10(x) + share * (math.log10(next_x) - math.log10(x)))
    return None


def matter(verdicts: Sequence[str]) -> str:
    """Rule 4, from an arm's verdicts against token F1 in all cells."""
    ahead, waiting = verdicts.count("pays") - verdicts.count("costs"), sum(not is_final(one) for one in verdicts)
    if ahead > waiting:
        return "they matter"
    if ahead + waiting <= 0:
        return "they do not matter"
    return f"not yet ({len(verdicts) - waiting} of {len(verdicts)} cells)"


def better_or_worse(differences: Sequence[Difference]) -> str:
    """Rule 5, from the differences in both scores."""
    if all(one.low > 0 for one in differences):
        return "better"
    return "worse" if all(one.high < 0 for one in differences) else "neither"


def open_verdict(one: Sequence[BySeed], other: Sequence[BySeed]) -> str:
    """Rule 5, from both scores of two arms."""
    pairs = list(zip(one, other, strict=True))
    seeds = min(len(set(own) & set(beside)) for own, beside in pairs)
    found = [difference for pair in pairs if (difference := differ(*pair)) is not None]
    return not_yet(seeds) if seeds < len(SEEDS) else better_or_worse(found)


def worth_it(to_binary: str, to_sft: str) -> str:
    """Rule 5, from a dense reward's verdicts: better than binary and not worse than SFT."""
    if to_sft == "worse" or (is_final(to_binary) and to_binary != "better"):
        return "no"
    return next((one for one in (to_binary, to_sft) if not is_final(one)), "yes")
