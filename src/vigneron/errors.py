"""Errors that a user can cause: shown as one line that says what, where and how to mend it, never as a traceback."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any


class UserError(Exception):
    """Something the user can mend. The message is the line they see."""


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
    return next(iter(get_close_matches(word, list(known), n=1, cutoff=0.6)), None)
