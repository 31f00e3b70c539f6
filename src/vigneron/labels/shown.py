"""A text as a page shows it: as it is, but for what would not be seen or would rearrange the rest."""

from typing import Any

from vigneron.report.tables import plain
from vigneron.rollout.texts import prompt_text

LONGEST_SHOWN = 100_000


def shown_text(text: str) -> str:
    rest = len(text) - LONGEST_SHOWN
    return plain(text[:LONGEST_SHOWN]) + (f"\n… and {rest:,} more characters" if rest > 0 else "")


def shown_prompt(prompt: Any) -> str:
    """Of a conversation with one turn, its words."""
    one_turn = not isinstance(prompt, str) and len(prompt) == 1
    return shown_text(prompt[0]["content"] if one_turn else prompt_text(prompt))
