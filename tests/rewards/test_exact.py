"""The binary baseline."""

import pytest

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
