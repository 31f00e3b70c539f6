"""Sentiment inversion's checker (pgsrm §4.3, "a rule-based check"): first person kept, polarity turned, same topic.

Polarity is VADER's compound score, in [−1, 1]; its authors call a text negative from −0.05 down.
"""

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from vigneron.rollout.prompts import completion_text

CLEARLY = 0.05
FIRST_PERSON = frozenset({"i", "im", "ive", "ill", "id", "my", "me", "mine", "myself", "we", "our", "us"})
WITHOUT_TOPIC = """
    a an the this that these those it its is am are was were be been being do does did have has had having will would
    can could should may might must and or but so because for of to in on at by with from about as than then when not
    no never very really too just feel feels feeling felt make makes made all every everything nothing some any much
    many more most such what who how there here now always ever like
"""
FRAME = FIRST_PERSON | frozenset(WITHOUT_TOPIC.split())


def is_inverted(source: str, completion: str) -> bool:
    """A negative sentence in the first person with a topic word of the positive `source`, at most twice as long."""
    words, about = _words(completion), topic(source)
    return (
        bool(FIRST_PERSON & set(words))
        and polarity(completion) <= -CLEARLY
        and len(words) <= 2 * len(_words(source))
        and (not about or bool(about & set(words)))
    )


def topic(source: str) -> set[str]:
    """Its words that neither frame a sentence nor carry its mood: 'I love my new job' is about 'new job'."""
    return {word for word in _words(source) if word not in FRAME and word not in _analyzer().lexicon}


def inversion_reward(
    prompts: Sequence[Any], completions: Sequence[Any], *, input: Sequence[Any], **columns: Any
) -> list[float | None]:
    """1 for a sentence that `is_inverted` of its row's `input`, else 0."""
    return [
        float(is_inverted(str(source), completion_text(completion)))
        for source, completion in zip(input, completions, strict=True)
    ]


def polarity(text: str) -> float:
    return _analyzer().polarity_scores(text)["compound"]


@cache
def _analyzer() -> Any:
    from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

    return SentimentIntensityAnalyzer()


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower().replace("'", "").replace("’", ""))
