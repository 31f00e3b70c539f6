"""Texts as rewards compare them."""

import unicodedata


def normalise(text: str) -> str:
    """For equality: case, surrounding space and surrounding punctuation do not count.

    A minus sign before a digit is no punctuation, and a text of punctuation alone stays what it is.
    """
    text = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    start, stop = 0, len(text)
    while start < stop and _is_edge(text[start]) and not _is_sign(text, start):
        start += 1
    while stop > start and _is_edge(text[stop - 1]):
        stop -= 1
    return text[start:stop] or text


def letters_only(text: str) -> str:
    """As the released PGSRM code embeds: lowercase, everything but letters and the spaces between words removed."""
    kept = "".join(c if c.isalpha() or c.isspace() else "" for c in text.lower())
    return " ".join(kept.split())


def _is_edge(character: str) -> bool:
    kind = unicodedata.category(character)
    return character.isspace() or character in "`´" or kind[0] == "P" or kind in ("Cc", "Cf")


def _is_sign(text: str, at: int) -> bool:
    return text[at] in "-−" and text[at + 1 : at + 2].isdigit()
