"""Flows that look at the text: string_check, regex, length, text_similarity. Each sample is scored by itself."""

import re
from collections.abc import Callable, Sequence
from typing import Any

from vigneron.errors import UserError, first_line
from vigneron.rewards.graders.similarity import similarity
from vigneron.rubric.model import LengthItem, RegexItem, StringCheckItem, TextSimilarityItem
from vigneron.sources.verdict import Answered, Verdict
from vigneron.text import normalise

Render = Callable[[str, Answered], str]
"""A template's text for one sample."""

# A pattern that takes longer on one answer goes through more and more ways to match.
REGEX_S = 1.0


class EachAlone:
    """A grader whose verdict on a sample depends on nothing else."""

    waits = False

    def __call__(self, samples: Sequence[Answered]) -> list[Verdict]:
        return [self.verdict(sample) for sample in samples]

    def verdict(self, sample: Answered) -> Verdict:
        raise NotImplementedError


class StringCheck(EachAlone):
    """1 or 0. Equality is that of the exact reward; `includes` looks for the reference as it stands."""

    def __init__(self, item: StringCheckItem, render: Render) -> None:
        self._item, self._render = item, render

    def verdict(self, sample: Answered) -> Verdict:
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
        found = wanted in text
        return Verdict(float(found), reasoning=f"the reference is {'' if found else 'not '}in the response")


class RegexCheck(EachAlone):
    """1 or 0; missing where the pattern takes too long."""

    def __init__(self, item: RegexItem) -> None:
        self._expect, self._pattern = item.expect, compiled(item.pattern, f"item '{item.name}', pattern")

    def verdict(self, sample: Answered) -> Verdict:
        look = self._pattern.fullmatch if self._expect == "whole" else self._pattern.search
        try:
            found = look(sample.response, timeout=REGEX_S) is not None
        except TimeoutError:
            return Verdict.missing(f"the pattern took more than {REGEX_S:g} s on this response")
        said = "the response is the match" if self._expect == "whole" else "the pattern is found"
        unsaid = "the response is not the match" if self._expect == "whole" else "the pattern is not found"
        return Verdict(float(found != (self._expect == "absent")), reasoning=said if found else unsaid)


def compiled(pattern: str, where: str) -> Any:
    """By the `regex` package, whose matches can be given a time limit."""
    import regex

    try:
        return regex.compile(pattern)
    except (regex.error, RecursionError, OverflowError, ValueError, MemoryError) as error:
        raise UserError(f"{where}: '{pattern}' is no regular expression: {first_line(error)}") from None


class Length(EachAlone):
    """1 within the bounds, else the bound's share of the length, or the length's of the bound."""

    def __init__(self, item: LengthItem) -> None:
        self._item = item

    def verdict(self, sample: Answered) -> Verdict:
        length = UNITS[self._item.unit](sample.response)
        least, most = self._item.at_least or 0, self._item.at_most
        said = f"{length} {self._item.unit}"
        if length < least:
            return Verdict(length / least, reasoning=f"{said}, fewer than {least}")
        if most is not None and length > most:
            return Verdict(most / length, reasoning=f"{said}, more than {most}")
        return Verdict(1.0, reasoning=f"{said}, within the bounds")


def count_words(text: str) -> int:
    """What stands between spaces, with a letter or a digit in it."""
    return sum(any(map(str.isalnum, word)) for word in text.split())


def count_sentences(text: str) -> int:
    """What stands between full stops, question and exclamation marks that a space follows, or between lines."""
    parts = re.split(r"(?<![.!?…])[.!?…]+[\"'”’)\]]*\s|[。！？]|\n", text)
    return sum(any(map(str.isalnum, part)) for part in parts)


UNITS: dict[str, Callable[[str], int]] = {
    "characters": lambda text: len(text.strip()),
    "words": count_words,
    "sentences": count_sentences,
}


class TextSimilarity(EachAlone):
    def __init__(self, item: TextSimilarityItem, render: Render) -> None:
        self._item, self._render = item, render

    def verdict(self, sample: Answered) -> Verdict:
        score = similarity(self._item.metric, sample.response, self._render(self._item.reference, sample))
        return Verdict(score, reasoning=f"{self._item.metric} with the reference: {score:.2f}")
