"""Errors that a user can cause: one line that says what is wrong, where and how to fix it, never a traceback."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from vigneron.redaction import redacted

LONGEST_LINE = 800
MOST_LINES = 200


class UserError(Exception):
    """Something the user can fix. The message is one line, or one line per fault.

    It may quote untrusted files: long lines are shortened, secrets removed and control characters escaped.
    """

    reported_elsewhere: bool = False
    """Another rank of the run prints it."""
    exit_immediately: bool = False
    """Exit without cleanup: a library's threads would abort the process and print a page of text."""

    def __init__(self, message: str) -> None:
        lines = redacted(message).split("\n")
        more = [f"… and {len(lines) - MOST_LINES + 1} more"] if len(lines) > MOST_LINES else []
        shown = lines[: MOST_LINES - 1] if more else lines
        super().__init__("\n".join([*(_shortened(visible(line)) for line in shown), *more]))


def visible(text: str) -> str:
    """The text with control characters and newlines escaped, safe to print in a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _shortened(line: str) -> str:
    half = LONGEST_LINE // 2
    return line if len(line) <= LONGEST_LINE else f"{line[:half]} … {line[-half:]}"


def first_line(error: BaseException) -> str:
    """The first line of an error's message that is not blank, with the next one if it ends in a colon, or the error's
    type."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return " ".join(lines[: 2 if lines[0].endswith(":") else 1])


def reason(error: BaseException) -> str:
    """What the operating system reports ("No such file or directory"), or the error's first line."""
    return getattr(error, "strerror", None) or first_line(error)


def of_network(error: BaseException) -> bool:
    """Whether the HTTP library of `huggingface_hub`, httpx or httpx2 by version, could not connect."""
    return type(error).__module__.split(".")[0].startswith(("httpx", "httpcore"))


class DamagedWeights(UserError):
    """The model's logits are not finite: its weights are not worth a checkpoint."""


class NonFinite(UserError):
    """A loss, a gradient or a reward is NaN or infinite: the update was not applied. `batch` is the one at fault."""

    batch: Any = None


def did_you_mean(word: str, known: Iterable[str], otherwise: str | None = None) -> str:
    """' (did you mean X?)' for the nearest known word; else `otherwise`, or the list of known words."""
    known = list(known)
    near = nearest(word, known)
    if near is not None:
        return f" (did you mean '{near}'?)"
    return f" ({otherwise or 'available: ' + ', '.join(known)})"


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word most similar to `word`, if any. Long words are skipped: the comparison is quadratic."""
    if len(word) > LONGEST_LINE:
        return None
    return next(iter(get_close_matches(word, list(known), n=1, cutoff=0.6)), None)
