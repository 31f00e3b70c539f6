"""Text utilities: normalisation for comparison, simple statistics, CSV cells, safe display."""

import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from vigneron.errors import visible

LONGEST_MARKS = 100


def normalise(text: str) -> str:
    """Normalise for equality: without case, surrounding space and surrounding punctuation.

    A minus sign before a digit is kept, and a text of only punctuation is unchanged.
    """
    text = " ".join(nfkc(text).casefold().split())
    start, stop = 0, len(text)
    while start < stop and _is_edge(text[start]) and not _is_sign(text, start):
        start += 1
    while stop > start and _is_edge(text[stop - 1]):
        stop -= 1
    return text[start:stop] or text


def nfkc(text: str) -> str:
    """Unicode's form NFKC. Its time is quadratic in the length of a run of combining marks, so a run is normalised in
    parts of `LONGEST_MARKS`."""
    if text.isascii():
        return text
    parts, start, marks = [], 0, 0
    for at, character in enumerate(text):
        marks = marks + 1 if unicodedata.combining(character) else 0
        if marks == LONGEST_MARKS:
            parts.append(unicodedata.normalize("NFKC", text[start : at + 1]))
            start, marks = at + 1, 0
    return "".join([*parts, unicodedata.normalize("NFKC", text[start:])])


def letters_only(text: str) -> str:
    """Lowercase letters and single spaces only: everything else is deleted."""
    letters = "".join(c if c.isalpha() or c.isspace() else "" for c in text.lower())
    return " ".join(letters.split())


def a_to_z_only(text: str) -> str:
    """Lowercase a to z with single spaces for everything else, as in PGSRM's released notebooks."""
    return " ".join(re.findall("[a-z]+", text.lower()))


# A number with its sign and its decimal point; a word, with the apostrophes within it.
WORD = re.compile(r"(?<!\w)-\d++(?:[.,]\d++)*+|(?<![\w.])-?\.\d++|\d++(?:[.,]\d++)++|\w++(?:'\w++)*+")
PLAIN_MARKS = str.maketrans({"\N{MINUS SIGN}": "-", "\N{RIGHT SINGLE QUOTATION MARK}": "'"})


def words_only(text: str) -> str:
    """Lowercase words and numbers, one space between them: other punctuation separates words, and does not join them.

    A text without a word or number is kept as it is, but for space around it.
    """
    return " ".join(WORD.findall(nfkc(text).casefold().translate(PLAIN_MARKS))) or text.strip()


CLEANERS: dict[str, Callable[[str], str]] = {
    "words": words_only,
    "letters": letters_only,
    "a_to_z": a_to_z_only,
    "none": str,
}
"""How the semantic reward cleans texts before it compares them (`reward.clean`)."""


def words(text: str) -> list[str]:
    """Runs of letters and digits, lowercase."""
    return re.findall(r"\w+", text.casefold())


@lru_cache(maxsize=16)  # the samples of a prompt follow one another
def _word_set(text: str) -> frozenset[str]:
    return frozenset(words(text))


def repetition(text: str) -> float:
    """The share of a text's words that repeat an earlier one: 0 for none, near 1 for one word repeated."""
    tokens = words(text)
    return 1 - len(set(tokens)) / len(tokens) if tokens else 0.0


def length_ratio(text: str, answer: str) -> float:
    """The text's number of words over the answer's."""
    return len(words(text)) / max(1, len(words(answer)))


def share_in(text: str, source: str) -> float:
    """The share of a text's words that occur in the source: 1 for an echo."""
    tokens, known = words(text), _word_set(source)
    return sum(word in known for word in tokens) / len(tokens) if tokens else 0.0


def _is_edge(character: str) -> bool:
    kind = unicodedata.category(character)
    return character.isspace() or character in "`´" or kind[0] == "P" or kind in ("Cc", "Cf")


def _is_sign(text: str, at: int) -> bool:
    return text[at] in "-−" and text[at + 1 : at + 2].isdigit()


FORMULA = ("=", "+", "-", "@", "\t", "\r")


def to_cell(value: Any) -> Any:
    """A CSV cell that a spreadsheet does not run as a formula: prefixed with a quote."""
    return f"'{value}" if isinstance(value, str) and _is_formula(value) else value


def of_cell(value: Any) -> Any:
    """The inverse of `to_cell`."""
    return value[1:] if isinstance(value, str) and value.startswith("'") and _is_formula(value) else value


def _is_formula(text: str) -> bool:
    """Whether a spreadsheet would read the text as a formula, after any leading quotes."""
    return text.lstrip("'").startswith(FORMULA)


def plain(text: str) -> str:
    """The text with control and direction characters escaped; newlines and tabs are kept."""
    return "\n".join("\t".join(visible(part) for part in line.split("\t")) for line in text.split("\n"))
