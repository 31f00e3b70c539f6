"""What counts as right: equality, sentiment inversion, and a function of one's own."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from small_batch import make_batch
from vigneron.errors import UserError
from vigneron.rewards.checkers import checked, load_checker
from vigneron.rewards.exact import exact_reward
from vigneron.rewards.sentiment import inversion_reward, is_inverted, polarity, topic

HAPPY = "I love my new job."


@pytest.mark.parametrize(
    ("source", "completion", "right"),
    [
        (HAPPY, "I hate my new job.", True),
        (HAPPY, "My new job makes me miserable", True),
        (HAPPY, HAPPY, False),  # an echo
        (HAPPY, "I hate my dog.", False),  # another topic
        (HAPPY, "She hates her new job.", False),  # not the first person
        (HAPPY, "I go to my new job.", False),  # no mood
        (HAPPY, "I hate my new job. I hate it. I hate my boss and I am sad.", False),  # babble
        (HAPPY, "", False),
        ("I feel confident about my future.", "I feel unsure and scared about my future.", True),
        ("I woke up feeling full of energy.", "I woke up feeling drained and tired.", True),
        ("I feel so happy.", "I feel so sad.", True),  # nothing it could be about
    ],
)
def test_sentiment_inversion(source: str, completion: str, right: bool) -> None:
    assert is_inverted(source, completion) is right
    assert inversion_reward(["p"], [completion], input=[source], answer=["x"]) == [float(right)]


def test_a_topic_has_neither_frame_nor_mood() -> None:
    assert topic("I love my new job.") == {"new", "job"}
    assert topic("I feel so happy!") == set()


def test_polarity_has_a_sign() -> None:
    assert polarity("I am happy") > 0.05
    assert polarity("I am sad") < -0.05
    assert polarity("") == 0.0


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=40))
def test_no_text_is_its_own_inversion_unless_it_is_negative_itself(text: str) -> None:
    assert not is_inverted(text, text) or polarity(text) <= -0.05


def test_checkers_by_name() -> None:
    assert load_checker("equality") is exact_reward
    assert load_checker("sentiment_inversion") is inversion_reward
    with pytest.raises(UserError, match=r"^data.checker: cannot import 'no_such_vineyard'"):
        load_checker("no_such_vineyard:check")


def test_verdicts_are_kept_by_sample_and_a_row_without_an_answer_has_none() -> None:
    batch = make_batch([1, 1, 1], [1, 1, 1], columns={"answer": ("completion 0", None, "other")})
    assert checked(batch, exact_reward).correct == (True, None, False)
    assert checked(make_batch([1], [1]), exact_reward).correct == (None,)
