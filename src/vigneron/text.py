"""Text utilities: normalisation for comparison, simple statistics, CSV cells, safe display."""

import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal

import regex

from vigneron.errors import visible

LONGEST_MARKS = 100
LONG_RUN = re.compile(rb"[^\0]{%d}" % LONGEST_MARKS)
"""In the combining classes of a text."""

# Sets of characters, for the flag V1 of `regex`.
LETTER, MARK = r"\p{L}\p{N}_", r"\p{M}\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}"
SPACELESS = r"[[\p{Han}\p{Hiragana}\p{Katakana}ー\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]&&[\p{L}\p{Nl}\p{M}]]"  # no digits
"""Letters of the scripts that do not separate words by spaces."""
SPACED = rf"[[{LETTER}{MARK}]--{SPACELESS}]"
SPACELESS_LETTER = regex.compile(rf"[{SPACELESS}--\p{{M}}]\p{{M}}*+", regex.V1)


def normalise(text: str) -> str:
    """Normalise for equality: without case, surrounding space and surrounding punctuation.

    What belongs to a value is kept: a sign or a decimal mark before a digit, `%` after one, `#` after a word of one
    letter. A text of only punctuation is unchanged.
    """
    text = comparable(text)
    start, stop = 0, len(text)
    while start < stop and _is_edge(text[start]) and not VALUE_START.match(text, start):
        start += 1
    while stop > start and _is_edge(text[stop - 1]) and not _ends_value(text, stop):
        stop -= 1
    return text[start:stop] or text


def comparable(text: str) -> str:
    """The `standard` text without case, with single spaces, and none before a percent sign."""
    return BEFORE_PERCENT.sub("", " ".join(nfkc(standard(text).casefold()).split()))


VALUE_START = re.compile(r"-[.,]?\d|(?<![.,])[.,]\d")
VALUE_END = re.compile(r"\d[%‰]\Z|\b[^\W\d_]#\Z")
BEFORE_PERCENT = re.compile(r"(?<=\d) (?=[%‰])")

RAISED = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹ⁱⁿ⁺⁻⁼⁽⁾]+")
LOWERED = re.compile(r"(?<=\d)[₀-₉]++|(?<![₀-₉])[₀-₉]++(?=\d)")
FRACTION = re.compile("(?<=[0-9])(?=[¼½¾⅐-⅞])")
DASH = re.compile(r"[‐‒–—―](?=[.,]?\d)")
UNITS = {code: unicodedata.decomposition(chr(code)).partition("> ")[2] for code in range(0x3371, 0x33E0)}
SQUARED_UNITS = {code: "".join(chr(int(part, 16)) for part in parts.split()) for code, parts in UNITS.items()}
"""`㎡` as `m²`, and the like."""
DIRECTIONS = dict.fromkeys([0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)], "")
ONE_SPELLING = {
    **DIRECTIONS,
    **{ord("\N{MINUS SIGN}"): "-", ord("\N{RIGHT SINGLE QUOTATION MARK}"): "'"},
    **{ord("\N{FRACTION SLASH}"): "/", ord("\N{DIVISION SLASH}"): "/"},
    **{ord("٫"): ".", ord("٬"): ",", ord("٪"): "%"},
}


def standard(text: str) -> str:
    """One spelling of equal values: NFKC; the digits of every script in ASCII; `-` for a minus sign, and for a dash
    before a number; `10^2` for `10²`, `101_2` for `101₂`, `5 1/2` for `5½`. ASCII is unchanged."""
    if text.isascii():
        return text
    text = RAISED.sub(r"^\g<0>", text.translate(SQUARED_UNITS))
    text = FRACTION.sub(" ", LOWERED.sub(_lowered, text))
    text = nfkc(text).translate(ONE_SPELLING)
    text = "".join(str(unicodedata.decimal(c, c)) for c in text)
    return DASH.sub("-", text)


def _lowered(digits: re.Match[str]) -> str:
    """Apart from the digits beside them."""
    text, start, end = digits.string, digits.start(), digits.end()
    before, after = text[max(0, start - 1) : start], text[end : end + 1]
    return f"{'_' if before.isdecimal() else ''}{digits[0]}{'_' if after.isdecimal() else ''}"


def nfkc(text: str) -> str:
    """Unicode's form NFKC."""
    return _in_form(text, "NFKC")


def nfc(text: str) -> str:
    """Unicode's form NFC."""
    return _in_form(text, "NFC")


def _in_form(text: str, form: Literal["NFC", "NFKC"]) -> str:
    """The time of `unicodedata` is quadratic in the length of a run of combining marks, so a run is normalised in parts
    of `LONGEST_MARKS`."""
    if text.isascii():
        return text
    cuts: list[int] = []
    if any(map(unicodedata.combining, text[::LONGEST_MARKS])):  # a long run has one of these characters
        cuts = [run.end() for run in LONG_RUN.finditer(bytes(map(unicodedata.combining, text)))]
    return "".join(unicodedata.normalize(form, text[a:b]) for a, b in pairwise([0, *cuts, len(text)]))


# With its combining marks; and a mark on no letter.
NO_LETTER = regex.compile(r"[^\p{L}\p{M}\s\x1c-\x1f]\p{M}*+|(?<![\p{L}\p{M}])\p{M}++")


def letters_only(text: str) -> str:
    """Lowercase letters with their combining marks, and single spaces: everything else is deleted."""
    return " ".join(NO_LETTER.sub("", nfc(text.lower())).split())


def a_to_z_only(text: str) -> str:
    """Lowercase a to z with single spaces for everything else, as in PGSRM's released notebooks."""
    return " ".join(re.findall("[a-z]+", text.lower()))


# A number with its sign and its decimal point; a word, with the apostrophes within it.
WORD = regex.compile(
    rf"(?<![{LETTER}{MARK}])-\d++(?:[.,]\d++)*+|(?<![{LETTER}{MARK}.])-?\.\d++|\d++(?:[.,]\d++)++"
    rf"|[{LETTER}][{LETTER}{MARK}]*+(?:'[{LETTER}{MARK}]++)*+",
    regex.V1,
)


def words_only(text: str) -> str:
    """Lowercase words and numbers, one space between them: other punctuation separates words, and does not join them.

    A text without a word or number is kept as it is, but for space around it.
    """
    return " ".join(WORD.findall(standard(text).casefold())) or text.strip()


CLEANERS: dict[str, Callable[[str], str]] = {
    "words": words_only,
    "letters": letters_only,
    "a_to_z": a_to_z_only,
    "none": str,
}
"""How the semantic reward cleans texts before it compares them (`reward.clean`)."""


WORDS = regex.compile(rf"{SPACELESS_LETTER.pattern}|[[{LETTER}]--{SPACELESS}]{SPACED}*+", regex.V1)
WORDS_AND_NUMBERS = regex.compile(
    rf"(?<![{LETTER}{MARK}])-\d++(?:\.\d++)*+|(?<![{LETTER}{MARK}.])-?\.\d++|\d++(?:\.\d++)++"
    rf"|[{LETTER}][{LETTER}{MARK}]*+",
    regex.V1,
)


def words(text: str) -> list[str]:
    """Runs of letters and digits, lowercase, with their combining marks. In scripts without spaces between words
    (Chinese, Japanese, Thai, Lao, Khmer, Burmese) each letter is a word."""
    return WORDS.findall(standard(text).casefold())


def words_and_numbers(text: str) -> list[str]:
    """Words as the text separates them, and numbers with their sign and their decimal point. A comma separates."""
    return WORDS_AND_NUMBERS.findall(standard(text).casefold())


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


def _ends_value(text: str, stop: int) -> bool:
    """Whether the character before `stop` belongs to what it follows: `50%`, `C#`."""
    return VALUE_END.search(text, max(0, stop - 3), stop) is not None and text[stop : stop + 1] != "#"


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
