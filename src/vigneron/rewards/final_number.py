"""Whether two texts end in the same number: for problems whose solutions end in their result, as GSM8K's `#### 42`."""

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from vigneron.data.prompts import completion_text

MARK = "####"
LONGEST = 60
"""Digits of a number. A longer one is none."""
NUMBER = re.compile(r"(?<![\w.])-?[0-9]++(?:,[0-9]{3}(?![0-9]))*+(?:\.[0-9]++)?+")


def final_number(text: str) -> Decimal | None:
    """The first number after the last `####`; in a text without that mark its last number. `1,000` is 1000."""
    _, marked, after = text.rpartition(MARK)
    if marked:
        number = NUMBER.search(after)
        last = number.group() if number else ""
    else:
        last = next(iter(NUMBER.findall(after)[-1:]), "")
    digits = last.replace(",", "")
    return Decimal(digits) if 0 < len(digits) <= LONGEST else None


def final_number_reward(
    prompts: Sequence[Any], completions: Sequence[Any], *, answer: Sequence[Any], **columns: Any
) -> list[float | None]:
    """1 if the final numbers are equal. None if the answer is missing or has no number."""
    return [_verdict(completion, wanted) for completion, wanted in zip(completions, answer, strict=True)]


def _verdict(completion: Any, answer: Any) -> float | None:
    right = None if answer is None else final_number(completion_text(answer))
    return None if right is None else float(final_number(completion_text(completion)) == right)
