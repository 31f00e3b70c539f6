"""Texts as rewards compare them."""

import unicodedata


def normalise(text: str) -> str:
    """For equality: case, surrounding space and surrounding punctuation do not count."""
    text = unicodedata.normalize("NFKC", text).casefold()
    start, stop = 0, len(text)
    while start < stop and _is_edge(text[start]):
        start += 1
    while stop > start and _is_edge(text[stop - 1]):
        stop -= 1
    return " ".join(text[start:stop].split())


def letters_only(text: str) -> str:
    """As the released PGSRM code embeds: lowercase, everything but letters and the spaces between words removed."""
    kept = "".join(c if c.isalpha() or c.isspace() else "" for c in text.lower())
    return " ".join(kept.split())


def _is_edge(character: str) -> bool:
    return character.isspace() or unicodedata.category(character)[0] in "PSC"
