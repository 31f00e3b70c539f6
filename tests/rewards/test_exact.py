"""The binary baseline."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vigneron.rewards.checkers import exact_reward, includes, is_exact


@pytest.mark.parametrize(
    ("completion", "answer", "same"),
    [
        ("Purple.", "purple", True),
        ("purple", " PURPLE ", True),
        ("Straße", "STRASSE", True),
        ("violet", "purple", False),
        ("purple and", "purple", False),  # not a prefix, not a substring
        ("purp le", "purple", False),
        ("", "purple", False),
        ("7", 7, True),  # JSON's numbers are answers too
        ("8", 7, False),
        ("−5", "-5", True),
        ("–5", "5", False),
        ("10²", "102", False),
        ("2⁵", "25", False),
        (".5", "5", False),
        ("-.5", ".5", False),
        ("50%", "50", False),
        ("50 %", "50%", True),
        ("C#", "C", False),
        ("C", "C++", False),
        ("٤٢", "42", True),
        ("5 ㎡", "5 m²", True),
        ([{"role": "assistant", "content": "Purple!"}], "purple", True),
        ([{"role": "assistant", "content": "blue"}], "purple", False),
    ],
)
def test_is_exact(completion: object, answer: object, same: bool) -> None:
    assert is_exact(completion, answer) is same


def test_exact_reward_has_trls_signature_and_knows_missing_from_zero() -> None:
    rewards = exact_reward(
        prompts=["a", "b", "c", "d"],
        completions=["Red.", "blue", "green", ""],
        completion_ids=[[1], [2], [3], []],
        answer=["red", "red", None, "red"],
        difficulty=[1, 2, 3, 4],
        log_extra=print,
        log_metric=print,
    )
    assert rewards == [1.0, 0.0, None, 0.0]


def test_a_column_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        exact_reward(["a", "b"], ["x", "y"], answer=["x"])


def test_an_answer_is_included_as_whole_words() -> None:
    assert includes(" 'dark' and", "dark")
    assert includes("It is Dark blue.", "dark blue")
    assert includes("C++, of course", "C++")
    assert not includes("darkness", "dark")
    assert not includes("", "dark")


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("法国的首都是巴黎。", "巴黎"),
        ("答えは東京です。", "東京"),
        ("เมืองหลวงคือกรุงเทพ", "กรุงเทพ"),
        ("Parisは首都", "Paris"),
        ("The word is cafe\u0301.", "café"),
        ("It is 10\u00a0000 €.", "10 000 €"),
        ("two\nlines, here", "two lines"),
        ("答案是42。", "42"),
        ("It is −5.", "-5"),
        ("It is 5, not 6.", "5"),
        ("5\n100", "100"),
        ("1,2,5", "5"),
        ("from 3-5", "5"),
        ("about 50 % of it", "50%"),
        ("version v2.0.1", "v2.0"),
    ],
)
def test_an_answer_is_found_in_running_text(completion: str, answer: str) -> None:
    assert includes(completion, answer)


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("दिल्ली", "दिल"),
        ("กรุง", "กร"),
        ("Paris", "Pari"),
        ("3.5", "5"),
        ("42.5", "42"),
        ("It is -5 degrees", "5"),
        ("It is −5 degrees", "5"),
        ("3-5", "-5"),
        ("3.5", ".5"),
        ("1,000", "1"),
        ("10\u202f000", "10"),
        ("1e5", "1"),
        ("10²", "2"),
        ("١٠٠٠", "١٠"),
        ("anything", ""),
    ],
)
def test_a_part_of_a_word_or_a_number_is_not_included(completion: str, answer: str) -> None:
    assert not includes(completion, answer)


@given(st.text().filter(str.strip))
def test_a_text_includes_itself(text: str) -> None:
    assert includes(text, text)
    assert includes(unicodedata.normalize("NFD", text), unicodedata.normalize("NFC", text))


WORDS = st.text(st.characters(categories=["L"]), min_size=1, max_size=8)


@given(WORDS, WORDS, WORDS)
def test_a_word_is_found_between_others(before: str, word: str, after: str) -> None:
    assert includes(f"{before} {word} {after}", word)
    assert includes(f"{before}, «{word}»; {after}", word)
    assert includes(f"{before}\n{word}\n{after}", word)
