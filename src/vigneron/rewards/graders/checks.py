"""Graders of the text alone: string_check, regex, length, text_similarity."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from vigneron.errors import UserError, first_line
from vigneron.rubric.model import LengthItem, RegexItem, StringCheckItem, TextSimilarityItem
from vigneron.sources.verdict import GraderInput, Verdict
from vigneron.text import SPACELESS_LETTER, normalise, words


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


Render = Callable[[str, GraderInput], str]
"""Renders a template for one sample."""

# A pattern that takes longer backtracks exponentially.
REGEX_S = 1.0


class PerSampleGrader:
    """Base of graders that score each sample independently."""

    overlaps = False

    def __call__(self, samples: Sequence[GraderInput]) -> list[Verdict]:
        return [self.verdict(sample) for sample in samples]

    def verdict(self, sample: GraderInput) -> Verdict:
        raise NotImplementedError


class StringCheckGrader(PerSampleGrader):
    """1 or 0. Equality normalises as the exact reward does; `includes` is a plain substring test."""

    def __init__(self, item: StringCheckItem, render: Render) -> None:
        self._item, self._render = item, render

    def verdict(self, sample: GraderInput) -> Verdict:
        reference, operation = self._render(self._item.reference, sample), self._item.operation
        if operation in ("equals", "differs"):
            same = normalise(sample.response) == normalise(reference)
            words = "the response equals the reference" if same else "the response differs from the reference"
            return Verdict(float(same == (operation == "equals")), reasoning=words)
        wanted, text = reference.strip(), sample.response
        if not wanted:
            return Verdict.missing("the reference is empty: every response includes it")
        if operation == "includes_any_case":
            wanted, text = wanted.casefold(), text.casefold()
        is_in = wanted in text
        return Verdict(float(is_in), reasoning=f"the reference is {'' if is_in else 'not '}in the response")


class RegexGrader(PerSampleGrader):
    """1 or 0; missing if the pattern takes too long."""

    def __init__(self, item: RegexItem) -> None:
        self._expect, self._pattern = item.expect, compile_pattern(item.pattern, f"item '{item.name}', pattern")

    def verdict(self, sample: GraderInput) -> Verdict:
        match = self._pattern.fullmatch if self._expect == "whole" else self._pattern.search
        try:
            matches = match(sample.response, timeout=REGEX_S) is not None
        except TimeoutError:
            # Not missing: a policy could choose that.
            return Verdict(0.0, reasoning=f"the pattern took more than {REGEX_S:g} s on the response")
        yes = "the response is the match" if self._expect == "whole" else "the pattern is found"
        no = "the response is not the match" if self._expect == "whole" else "the pattern is not found"
        return Verdict(float(matches != (self._expect == "absent")), reasoning=yes if matches else no)


def compile_pattern(pattern: str, where: str) -> Any:
    """With the `regex` package, whose matching accepts a timeout."""
    import regex

    try:
        return regex.compile(pattern)
    except (regex.error, RecursionError, OverflowError, ValueError, MemoryError) as error:
        raise UserError(f"{where}: '{pattern}' is not a valid regular expression: {first_line(error)}") from None


class LengthGrader(PerSampleGrader):
    """1 within the bounds; above them bound / length, below them length / bound."""

    def __init__(self, item: LengthItem) -> None:
        self._item = item

    def verdict(self, sample: GraderInput) -> Verdict:
        length = UNITS[self._item.unit](sample.response)
        least, most = self._item.at_least or 0, self._item.at_most
        counted = f"{length} {self._item.unit}"
        if length < least:
            return Verdict(length / least, reasoning=f"{counted}, fewer than {least}")
        if most is not None and length > most:
            return Verdict(most / length, reasoning=f"{counted}, more than {most}")
        return Verdict(1.0, reasoning=f"{counted}, within the bounds")


def count_words(text: str) -> int:
    """Whitespace-separated words with at least one letter or digit. In scripts without spaces between words each letter
    is a word."""
    spaced, letters = SPACELESS_LETTER.subn(" ", text)
    return letters + sum(any(map(str.isalnum, word)) for word in spaced.split())


def count_sentences(text: str) -> int:
    """Parts split at line breaks and at sentence-ending punctuation followed by a space."""
    parts = re.split(r"(?<![.!?…])[.!?…]+[\"'”’)\]]*\s|[。！？]|\n", text)
    return sum(any(map(str.isalnum, part)) for part in parts)


UNITS: dict[str, Callable[[str], int]] = {
    "characters": lambda text: len(text.strip()),
    "words": count_words,
    "sentences": count_sentences,
}


class TextSimilarityGrader(PerSampleGrader):
    def __init__(self, item: TextSimilarityItem, render: Render) -> None:
        self._item, self._render = item, render

    def verdict(self, sample: GraderInput) -> Verdict:
        score = similarity(self._item.metric, sample.response, self._render(self._item.reference, sample))
        return Verdict(score, reasoning=f"{self._item.metric} with the reference: {score:.2f}")
