"""Texts as rewards compare them."""

import pytest

from vigneron.text import letters_only, normalise


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Purple", "purple"),
        ("  purple.\n", "purple"),
        ('"Purple!"', "purple"),
        ("«Purple» …", "purple"),
        ("dark   \t blue", "dark blue"),
        ("blue-green", "blue-green"),  # inner punctuation stays
        ("don't", "don't"),
        ("STRASSE", "strasse"),
        ("Straße", "strasse"),  # casefold
        ("ＰＵＲＰＬＥ", "purple"),  # full width: NFKC
        ("ﬁne", "fine"),  # a ligature: NFKC
        ("cafe\u0301", "café"),  # a combining accent: NFKC
        ("\u200bpurple\u200b", "purple"),  # zero width
        ("42.", "42"),
        ("", ""),
        (" .!? ", ".!?"),  # nothing but punctuation stays what it is
        ("-5", "-5"),
        ("- five", "five"),
        ("C++.", "c++"),
    ],
)
def test_normalise(text: str, wanted: str) -> None:
    assert normalise(text) == wanted
    assert normalise(normalise(text)) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Purple!", "purple"),
        (" It's 7 o'clock,\nnow. ", "its oclock now"),
        ("blue-green", "bluegreen"),
        ("Élan Ω", "élan ω"),
        ("123 …", ""),
        ("", ""),
    ],
)
def test_letters_only(text: str, wanted: str) -> None:
    assert letters_only(text) == wanted
