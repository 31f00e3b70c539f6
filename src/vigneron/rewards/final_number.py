"""Whether two texts end in the same number: for problems whose solutions end in their result, as GSM8K's `#### 42`.

What is read, of digits of every script, with spaces of every kind, and `-` for a minus sign or a dash:

1. Groups of three, by commas, spaces or apostrophes: 1,234.5 and 1 234,5 and 1'234. A comma before three digits groups
   them, as in the US. Indian groups: 12,34,567.
2. A decimal point, and a comma that cannot group: 3.14 and 3,14 and 0,125. European 1.234,5 and 1.000.000.
3. An exponent, a fraction: 1e5, 3/4, 5 1/2, in LaTeX too.

Any other run of digits, as 1,2,3 or 12:30 or 10^3, is no number, and neither is a part of it.
"""

import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import regex

from vigneron.data.prompts import completion_text
from vigneron.text import SPACED, standard

MARK = "####"
LONGEST = 60
"""Digits of a number. A longer one is none."""

# A run of digits with all that may belong to its number. Not within a word, as in `B12` or `v2.0`.
RUN = regex.compile(
    rf"(?<!{SPACED})(?<!{SPACED}\.)(?P<minus>-\p{{Sc}}?)?+(?P<digits>"
    r"(?:(?<!\d )\d{1,3}+(?: \d{3}(?!\d))++(?: (?=\d++/\d)\d++|(?! \d))|\d++ (?=\d++/\d)\d++|\d++|(?<!\.)(?=\.\d))"
    r"(?:(?:[.,:/']|\^-?)\d++)*+(?:(?<=[,']\d{3}) \d++/\d++)?+(?:[eE][+-]?\d++)?+)",
    regex.V1,
)
PART = re.compile(r"-?\d++(?:(?:\.|\^-?)\d++)*+")
FORMS = [
    (re.compile(pattern), group_mark)
    for pattern, group_mark in (
        (r"[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?", ","),  # 1,234.5
        (r"[1-9]\d?(?:,\d{2})+,\d{3}(?:\.\d+)?", ","),  # 12,34,567.8
        (r"[1-9]\d{0,2}(?: \d{3})+(?:[.,]\d+)?", " "),  # 1 234,5
        (r"[1-9]\d{0,2}(?:'\d{3})+(?:[.,]\d+)?", "'"),  # 1'234.5
        (r"[1-9]\d{0,2}(?:\.\d{3})+,\d+", "."),  # 1.234,5
        (r"[1-9]\d{0,2}(?:\.\d{3}){2,}", "."),  # 1.234.567
        (r"\d+,\d+", ""),  # 3,14
        (r"\d*(?:\.\d+)?(?:[eE][+-]?\d{1,3})?", ""),  # 3.14e5
    )
]
"""How a number may be written, with the mark between its groups. A comma that is left is the decimal mark."""
QUOTIENT = re.compile(r"(?:(\d+) (?!0))?(\d+)/(\d+)")
"""With a whole number before it or not. The zeros of `12 000/3` are a group, and groups have no fraction."""
LATEX_FRACTION = re.compile(r"(\d)?\\[dt]?frac\{(\d+)\}\{(\d+)\}")


def final_number(text: str) -> Fraction | None:
    """The first number after the last `####`; in a text without that mark its last number. `1,000` is 1000."""
    _, marked, after = _without_latex(standard(text)).rpartition(MARK)
    runs = list(RUN.finditer(after))
    return _value(runs[0 if marked else -1]) if runs else None


def number_spans(text: str) -> Iterator[tuple[int, int]]:
    """Where the numbers of a `standard` text begin and end. A run of digits that is no number is read as a list."""
    for run in RUN.finditer(text):
        if _value(run) is not None:
            yield run.span()
        else:
            yield from (part.span() for part in PART.finditer(text, *run.span()))


def why_no_number(answer: Any) -> str | None:
    """What is wrong with an answer for this checker. None: nothing."""
    return "has no number that `final_number` can read" if final_number(completion_text(answer)) is None else None


def _value(run: Any) -> Fraction | None:
    digits = run["digits"]
    value = _read(digits) if sum(map(str.isdecimal, digits)) <= LONGEST else None
    return -value if value is not None and run["minus"] else value


def _read(digits: str) -> Fraction | None:
    if quotient := QUOTIENT.fullmatch(digits):
        whole, above, below = (int(part or 0) for part in quotient.groups())
        is_mixed = quotient[1] is not None
        return None if below == 0 or (is_mixed and above >= below) else whole + Fraction(above, below)
    for form, group_mark in FORMS:
        if form.fullmatch(digits):
            return Fraction(digits.replace(group_mark, "").replace(",", "."))
    return None


def _without_latex(text: str) -> str:
    r"""`1{,}234` and `1\,234` as `1,234` and `1 234`, and `\frac{3}{4}` as `3/4`."""
    text = text.replace("{,}", ",").replace("\\,", " ")
    return LATEX_FRACTION.sub(lambda found: f"{f'{found[1]} ' if found[1] else ''}{found[2]}/{found[3]}", text)


def final_number_reward(
    prompts: Sequence[Any], completions: Sequence[Any], *, answer: Sequence[Any], **columns: Any
) -> list[float | None]:
    """1 if the final numbers are equal. None if the answer is missing or has no number."""
    return [_verdict(completion, wanted) for completion, wanted in zip(completions, answer, strict=True)]


def _verdict(completion: Any, answer: Any) -> float | None:
    right = None if answer is None else final_number(completion_text(answer))
    return None if right is None else float(final_number(completion_text(completion)) == right)
