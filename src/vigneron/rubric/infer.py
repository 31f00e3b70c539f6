"""Principles that explain preferences (inverse constitutional AI, Findeis et al. 2024): proposed from pairs, near
duplicates merged, each tested on held-out pairs, and kept where it predicts them (as C3AI asks of a constitution)."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from vigneron.core.intervals import wilson
from vigneron.data.prompts import Row, conversation_text
from vigneron.rubric.comparing import Compared, compare
from vigneron.rubric.principle_prompts import proposal_request
from vigneron.rubric.principles import Principle
from vigneron.sources.client import Failure
from vigneron.sources.judges import Judge
from vigneron.sources.reply_parsing import unfenced
from vigneron.text import words

ALIKE = 0.6
"""Two proposals that share this part of their words are one principle."""
LONGEST = 400
MOST = 100
"""Principles in one reply; it is asked for three."""


@dataclass(frozen=True)
class Tested:
    """A principle, and the share of held-out pairs that it predicts, with a 95 % interval. `pairs` have a label in both
    orders."""

    text: str
    proposed: int
    accuracy: float
    low: float
    high: float
    pairs: int
    missing: int

    @property
    def predicts(self) -> bool:
        """Better than chance: the whole interval is above one half."""
        return self.low > 0.5

    def line(self) -> str:
        return f"predicts {self.accuracy:.0%} of {self.pairs} held-out pairs ({self.low:.0%} to {self.high:.0%})"


def propose(proposer: Judge, pairs: Sequence[Row]) -> tuple[list[str], int]:
    """The proposals for all pairs, and how many replies were missing or could not be parsed."""
    requests = [proposal_request(row["prompt"], *_texts(row)) for row in pairs]
    proposals: list[str] = []
    failed = 0
    for reply in proposer.complete(requests):
        texts = None if isinstance(reply, Failure) else parse_proposals(reply)
        failed += texts is None
        proposals += texts or []
    return proposals, failed


def parse_proposals(text: str) -> list[str] | None:
    """The reply is {"principles": […]}, optionally in a code fence. None: it is not."""
    try:
        reply = json.loads(unfenced(text))
    except (ValueError, RecursionError):
        return None
    listed = reply.get("principles") if isinstance(reply, dict) else None
    if not isinstance(listed, list) or len(listed) > MOST or not all(isinstance(each, str) for each in listed):
        return None
    return [" ".join(each.split()) for each in listed if each.strip() and len(each) <= LONGEST and each.isprintable()]


def merged(proposals: Sequence[str], alike: float = ALIKE) -> list[tuple[str, int]]:
    """The distinct proposals with their counts, the most frequent first; of near duplicates the first one."""
    kept: list[tuple[str, frozenset[str], int]] = []
    for text in proposals:
        own = frozenset(words(text))
        at = next((i for i, (_, other, _) in enumerate(kept) if similarity(own, other) >= alike), None)
        if at is None:
            kept.append((text, own, 1))
        else:
            kept[at] = (*kept[at][:2], kept[at][2] + 1)
    return [(text, count) for text, _, count in sorted(kept, key=lambda each: -each[2])]


def similarity(one: frozenset[str], other: frozenset[str]) -> float:
    """Shared words over all words (Jaccard)."""
    return len(one & other) / len(one | other) if one | other else 1.0


def score_principles(judge: Judge, proposals: Sequence[tuple[str, int]], pairs: Sequence[Row]) -> list[Tested]:
    """Every principle on every pair, in both orders; the best first. A tie counts half, a missing label is left out."""
    comparisons = [Compared(row["prompt"], *_texts(row), principle=text) for text, _ in proposals for row in pairs]
    preferences = compare(judge, comparisons)
    tested = []
    for place, (text, count) in enumerate(proposals):
        of_text = preferences[place * len(pairs) : (place + 1) * len(pairs)]
        known = [p.probability for p in of_text if p.probability is not None]
        right = sum(1.0 if p > 0.5 else 0.5 if p == 0.5 else 0.0 for p in known)
        low, high = wilson(right, len(known))
        share = right / len(known) if known else 0.0
        tested.append(Tested(text, count, share, low, high, len(known), len(pairs) - len(known)))
    return sorted(tested, key=lambda each: (-each.accuracy, -each.proposed))


def as_principles(tested: Sequence[Tested]) -> list[Principle]:
    return [Principle(name=f"principle {number}", text=each.text) for number, each in enumerate(tested, start=1)]


def _texts(row: Row) -> tuple[str, str]:
    return conversation_text(row["chosen"]), conversation_text(row["rejected"])
