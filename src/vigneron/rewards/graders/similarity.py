"""Similarity of two texts in [0, 1]; 1 for equal texts."""

from collections import Counter
from collections.abc import Callable, Sequence

from vigneron.text import normalise, words


def ratio(one: str, other: str) -> float:
    """2·LCS / (len(one) + len(other)), with LCS the length of the longest common subsequence of characters.

    difflib's ratio is similar and never larger, but depends on the order of the texts, and takes minutes on a text that
    repeats one word, as a degenerate policy writes.
    """
    return _f1(longest_common(one, other), one, other)


def token_f1(one: str, other: str) -> float:
    """The harmonic mean of precision and recall of words, in any order."""
    first, second = words(one), words(other)
    return _f1(sum((Counter(first) & Counter(second)).values()), first, second)


def rouge_l(one: str, other: str) -> float:
    """As `ratio`, of words."""
    first, second = words(one), words(other)
    return _f1(longest_common(first, second), first, second)


def longest_common(one: Sequence[str], other: Sequence[str]) -> int:
    """The length of the longest common subsequence, by dynamic programming with one row of the table as the bits of an
    int.

    A 0 bit i means that the row increases there; a word of `other` moves each increase to its first match.
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


def _f1(common: int, one: Sequence[str], other: Sequence[str]) -> float:
    return 2 * common / (len(one) + len(other)) if one or other else 0.0


METRICS: dict[str, Callable[[str, str], float]] = {"ratio": ratio, "token_f1": token_f1, "rouge_l": rouge_l}


def similarity(metric: str, one: str, other: str) -> float:
    """After `normalise`: case and surrounding punctuation are ignored."""
    one, other = normalise(one), normalise(other)
    return 1.0 if one == other else METRICS[metric](one, other)
