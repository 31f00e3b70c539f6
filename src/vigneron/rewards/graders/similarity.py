"""How alike two texts are, in [0, 1]: 1 for the same text, whatever is in it."""

from collections import Counter
from collections.abc import Callable, Sequence

from vigneron.text import normalise, words


def ratio(one: str, other: str) -> float:
    """The share of both texts' characters in the longest sequence that stands in both in this order.

    difflib's ratio is like it and never larger, but depends on which text comes first, and takes minutes on a text of
    one word over and over, which is what a policy that went wrong writes.
    """
    return _f1(longest_common(one, other), one, other)


def token_f1(one: str, other: str) -> float:
    """The harmonic mean of the shares of words that each text has in the other, however they are ordered."""
    said, wanted = words(one), words(other)
    return _f1(sum((Counter(said) & Counter(wanted)).values()), said, wanted)


def rouge_l(one: str, other: str) -> float:
    """As `ratio`, of words."""
    said, wanted = words(one), words(other)
    return _f1(longest_common(said, wanted), said, wanted)


def longest_common(one: Sequence[str], other: Sequence[str]) -> int:
    """The length of the longest common subsequence: a row of the usual table at a time, as the bits of one number.

    A 0 in place i says that the table's row rises there; a word of `other` moves each rise to its first match.
    """
    places: dict[str, int] = {}
    for place, word in enumerate(one):
        places[word] = places.get(word, 0) | 1 << place
    every = (1 << len(one)) - 1
    level = every
    for word in other:
        matches = level & places.get(word, 0)
        level = (level + matches | level - matches) & every
    return len(one) - level.bit_count()


def _f1(common: int, said: Sequence[str], wanted: Sequence[str]) -> float:
    return 2 * common / (len(said) + len(wanted)) if said or wanted else 0.0


METRICS: dict[str, Callable[[str, str], float]] = {"ratio": ratio, "token_f1": token_f1, "rouge_l": rouge_l}


def similarity(metric: str, one: str, other: str) -> float:
    """Case and what stands around a text do not count, as for equality."""
    one, other = normalise(one), normalise(other)
    return 1.0 if one == other else METRICS[metric](one, other)
