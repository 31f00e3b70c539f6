"""Errors that a user can cause: shown as one line that says what, where and how to mend it, never as a traceback."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from vigneron.redaction import redacted

LONGEST_LINE = 800
MOST_LINES = 200


class UserError(Exception):
    """Something the user can mend. The message is the line they see, or lines: one for each fault.

    What it names comes from files of any kind: it is shortened, has no secrets, and nothing that a terminal obeys.
    """

    said_elsewhere: bool = False
    """Another rank of the run says it."""
    ends_at_once: bool = False
    """Threads of a library would abort this process on its way out, and write a page about it."""

    def __init__(self, message: str) -> None:
        lines = redacted(message).split("\n")
        more = [f"… and {len(lines) - MOST_LINES + 1} more"] if len(lines) > MOST_LINES else []
        kept = lines[: MOST_LINES - 1] if more else lines
        super().__init__("\n".join([*(_shortened(visible(line)) for line in kept), *more]))


def visible(text: str) -> str:
    """Control characters, which could move the cursor or recolour the terminal, as escapes; newlines too."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _shortened(line: str) -> str:
    half = LONGEST_LINE // 2
    return line if len(line) <= LONGEST_LINE else f"{line[:half]} … {line[-half:]}"


class NonFinite(UserError):
    """A loss, a gradient or a reward is NaN or infinite: nothing was updated by it. `batch` is what it came of."""

    batch: Any = None


def did_you_mean(word: str, known: Iterable[str], otherwise: str | None = None) -> str:
    """' (did you mean X?)' for the nearest known word, or `otherwise`, or what there is to choose from."""
    known = list(known)
    near = nearest(word, known)
    if near is not None:
        return f" (did you mean '{near}'?)"
    return f" ({otherwise or 'there is: ' + ', '.join(known)})"


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Of words of a usual length: comparing takes the square of it."""
    if len(word) > LONGEST_LINE:
        return None
    return next(iter(get_close_matches(word, list(known), n=1, cutoff=0.6)), None)
