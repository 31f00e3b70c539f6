"""Texts as rewards compare them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vigneron.text import a_to_z_only, letters_only, normalise, words_only


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


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Purple!", "purple"),
        (" It's 7 o'clock,\nnow. ", "it s o clock now"),
        ("Blue-green\t2", "blue green"),
        ("Élan Ωcafé", "lan caf"),
        ("123 …", ""),
        ("", ""),
    ],
)
def test_a_to_z_only(text: str, wanted: str) -> None:
    """As the released notebooks clean words: lower, a space for all but a to z, one space for several."""
    assert a_to_z_only(text) == wanted
    assert re.sub(r"\s+", " ", re.sub(r"[^a-z\s]", " ", text.lower())).strip() == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("New York", "new york"),
        ("new-york,NEW\nYork!", "new york new york"),
        ("99 eggs.", "99 eggs"),
        ("It’s 7 o'clock", "it's 7 o'clock"),
        ("3.50, not 350", "3.50 not 350"),
        ("x = -5; 3-5; −5", "x -5 3 5 -5"),
        (".5 is not 5... 5, -.5 neither; end.5", ".5 is not 5 5 -.5 neither end 5"),
        ("Élan Ω", "élan ω"),
        (" ?! ", "?!"),
        (" ", ""),
    ],
)
def test_words_only(text: str, wanted: str) -> None:
    assert words_only(text) == wanted
    assert words_only(wanted) == wanted


@given(st.integers(-999, 999), st.integers(-999, 999))
def test_two_numbers_are_two_texts(one: int, other: int) -> None:
    """`letters_only` reads "99 eggs" and "12 eggs" as the same text."""
    assert (words_only(f"{one} eggs") == words_only(f"{other} eggs")) == (one == other)


@given(st.lists(st.text("abcXYZ019", min_size=1), min_size=1), st.text(";:!?/ \n\t()", min_size=1))
def test_punctuation_separates_words(parts: list[str], between: str) -> None:
    assert words_only(between.join(parts)).split() == [part.lower() for part in parts]
