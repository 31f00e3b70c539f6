"""A text as a page shows it: as it is, but for what would not be seen or would rearrange the rest."""

from vigneron.report.tables import visible

LONGEST_SHOWN = 100_000


def shown_text(text: str) -> str:
    """Line breaks and tabs stay; every other control or bidi character stands there as its escape."""
    rest = len(text) - LONGEST_SHOWN
    cut = f"\n… and {rest:,} more characters" if rest > 0 else ""
    return "".join(c if c in "\n\t" else visible(c) for c in text[:LONGEST_SHOWN]) + cut
