"""The checker of sentiment inversion (pgsrm §4.3, "a rule-based check"): one first-person sentence of negative
sentiment about the topic of the input, which does not contain the input itself.

Sentiment is VADER's compound score in [−1, 1]; its authors call a text negative at −0.05 or below.
"""

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from vigneron.data.prompts import completion_text
from vigneron.text import normalise, repetition

NEGATIVE = -0.05
MAX_REPETITION = 0.25
FIRST_PERSON = frozenset({"i", "im", "ive", "my", "me", "mine", "myself", "we", "our", "ours"}) | frozenset(
    {"i'm", "i've", "i'd", "i'll", "we're", "we've"}
)
# Words that carry no topic.
STOP_WORDS = """
    a an the this that these those it its is am are was were be been being do does did have has had having will would
    can could should may might must and or but so because for of to in on at by with from about as than then when not
    no never very really too just feel feels feeling felt make makes made all every everything nothing some any much
    many more most such what who how there here now always ever like
"""
NON_TOPIC = FIRST_PERSON | frozenset(STOP_WORDS.split())


def is_inverted(source: str, completion: str) -> bool:
    """Whether the completion is a negative first-person sentence about the topic of the positive `source`."""
    text = normalise(completion)
    words, source_words = _words(text), _words(source)
    return (
        bool(FIRST_PERSON & set(words))
        and len(words) <= 2 * len(source_words)  # before VADER, whose time is quadratic in the words
        and sentiment(text) <= NEGATIVE
        and is_one_sentence(text)
        and repetition(text) <= MAX_REPETITION
        and " ".join(source_words) not in " ".join(words)
        and is_about(source, text)
    )


def is_about(source: str, text: str) -> bool:
    """It shares a word stem with the source, unless every topic word of the source carries sentiment."""
    topic = _stems(source)
    neutral = {
        stem for word in _words(source) if word not in NON_TOPIC and not has_sentiment(word) for stem in [_stem(word)]
    }
    return not neutral or bool(topic & _stems(text))


def is_one_sentence(text: str) -> bool:
    """No text after sentence-ending punctuation or on another line."""
    return re.search(r"[.!?][\s\"'”’]+\S|\n", text.strip()) is None


def inversion_reward(
    prompts: Sequence[Any], completions: Sequence[Any], *, input: Sequence[Any], **columns: Any
) -> list[float | None]:
    """1 if the completion `is_inverted` relative to its row's `input`, else 0."""
    return [
        float(is_inverted(str(source), completion_text(completion)))
        for source, completion in zip(input, completions, strict=True)
    ]


def sentiment(text: str) -> float:
    return _analyzer().polarity_scores(text.replace("’", "'"))["compound"]


def has_sentiment(word: str) -> bool:
    return word in _analyzer().lexicon


@cache
def _analyzer() -> Any:
    from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

    return SentimentIntensityAnalyzer()


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z]+(?:'[a-z]+)?", text.lower().replace("’", "'"))


def _stems(text: str) -> set[str]:
    return {_stem(word) for word in _words(text) if word not in NON_TOPIC}


def _stem(word: str) -> str:
    """A rough stem: 'exams' and 'exam', 'reading' and 'read' are equal."""
    for ending in ("'s", "ing", "ies", "ied", "es", "ed", "ly", "s", "e", "y"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word.removesuffix(ending)
    return word
