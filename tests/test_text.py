"""Texts as rewards compare them."""

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vigneron.text import (
    a_to_z_only,
    length_ratio,
    letters_only,
    nfc,
    nfkc,
    normalise,
    repetition,
    share_in,
    standard,
    words,
    words_and_numbers,
    words_only,
)


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
        ("C#.", "c#"),
        ("A### and C###", "a### and c"),
        ("cold#", "cold"),
        (".5", ".5"),
        ("(-.5)", "-.5"),
        ("...5", "5"),
        ("50 %.", "50%"),
        ("−5", "-5"),
        ("–5", "-5"),
        ("10²", "10^2"),
        ("10⁻³ m", "10^-3 m"),
        ("5 ㎡", "5 m^2"),
        ("101₂", "101_2"),
        ("log₂8", "log2_8"),
        ("H₂O", "h2o"),
        ("5½", "5 1/2"),
        ("٤٢", "42"),
        ("४२", "42"),
        ("٣٫١٤", "3.14"),
        ("\u200f-5\u200e", "-5"),
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
        ("दिल 5", "दिल"),
        ("cafe\u0301", "café"),
        ("5\u0301 ❤\ufe0f", ""),  # marks on no letter
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
        ("दिल, दाल!", "दिल दाल"),
        ("กรุงเทพ", "กรุงเทพ"),
        ("cafe\u0301", "café"),
        ("10² 102", "10 2 102"),
        ("٤٢ 巴黎", "42 巴黎"),
        ("❤\ufe0f", "❤\ufe0f"),
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


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("It's 3.14, or -5_a", ["it", "s", "3", "14", "or", "5_a"]),
        ("दिल्ली दिल", ["दिल्ली", "दिल"]),
        ("cafe\u0301", ["café"]),
        ("می\u200cخواهم", ["می\u200cخواهم"]),
        ("今天,好", ["今", "天", "好"]),
        ("iPhone手机2", ["iphone", "手", "机", "2"]),
        ("ラーメンか\u3099", ["ラ", "ー", "メ", "ン", "が"]),
        ("กรุง", ["ก", "รุ", "ง"]),
        ("❤\ufe0f ?!", []),
    ],
)
def test_words(text: str, wanted: list[str]) -> None:
    assert words(text) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("3.14, -5 and .5", ["3.14", "-5", "and", ".5"]),
        ("3,14", ["3", "14"]),
        ("5-3; −2", ["5", "3", "-2"]),
        ("大,小 大小", ["大", "小", "大小"]),
    ],
)
def test_words_and_numbers(text: str, wanted: list[str]) -> None:
    assert words_and_numbers(text) == wanted


def test_in_scripts_without_spaces_each_letter_is_a_word() -> None:
    assert repetition("好" * 50) == pytest.approx(49 / 50)
    assert repetition("今天很好") == 0
    assert length_ratio("这是一个非常非常长的回答" * 20, "是") == 240
    assert share_in("今天很好", "今天") == 0.5


ASCII = st.text(st.characters(max_codepoint=127))


@given(ASCII)
def test_ascii_is_cleaned_as_in_the_published_runs(text: str) -> None:
    assert standard(text) == text
    assert words(text) == re.findall(r"\w+", text.casefold())
    letters = "".join(c if c.isalpha() or c.isspace() else "" for c in text.lower())
    assert letters_only(text) == " ".join(letters.split())


@given(st.text())
def test_composed_and_decomposed_letters_are_one_text(text: str) -> None:
    composed, decomposed = (unicodedata.normalize(form, text) for form in ("NFC", "NFD"))
    for clean in (normalise, words_only, words, words_and_numbers):
        assert clean(composed) == clean(decomposed)


@given(st.lists(st.tuples(st.text(max_size=50), st.integers(0, 24)), max_size=8))
def test_a_text_without_a_long_run_of_marks_is_normalised_as_a_whole(parts: list[tuple[str, int]]) -> None:
    text = "".join(f"{start}a" + "\u0301\u0323" * pairs for start, pairs in parts)
    for form, ours in (("NFC", nfc(text)), ("NFKC", nfkc(text))):
        assert ours == unicodedata.normalize(form, text)


def test_a_long_run_of_marks_is_normalised_in_parts_of_100() -> None:
    """Below and above in turn: in order, all of the lower ones come first."""
    below, above = "\u0323", "\u0301"
    run = f"x{(above + below) * 125}y"
    assert nfc(run) == f"x{(below * 50 + above * 50) * 2}{below * 25 + above * 25}y"
    assert len(nfc(f"x{(above + below) * 500_000}")) == 1_000_001  # as a whole this takes hours


@given(st.integers(-999, 999), st.integers(-999, 999))
def test_numbers_of_any_script_are_equal_if_their_values_are(one: int, other: int) -> None:
    arabic = str.maketrans("0123456789-", "٠١٢٣٤٥٦٧٨٩−")
    assert (normalise(str(one).translate(arabic)) == normalise(str(other))) == (one == other)
    raised = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
    assert normalise(f"2{str(one).translate(raised)}") != normalise(f"2{other}")
