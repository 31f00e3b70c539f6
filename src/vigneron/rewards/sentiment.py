"""Sentiment inversion's checker (pgsrm §4.3, "a rule-based check"): one sentence in the first person, its mood turned,
about the same thing, and not the input with something sad beside it.

Mood is VADER's compound score, in [−1, 1]; its authors call a text negative from −0.05 down.
"""

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from vigneron.data.prompts import completion_text
from vigneron.text import normalise, repetition

NEGATIVE = -0.05
MOST_REPETITION = 0.25
FIRST_PERSON = frozenset({"i", "im", "ive", "my", "me", "mine", "myself", "we", "our", "ours"}) | frozenset(
    {"i'm", "i've", "i'd", "i'll", "we're", "we've"}
)
# Words that say nothing about what a sentence is about.
WITHOUT_TOPIC = """
    a an the this that these those it its is am are was were be been being do does did have has had having will would
    can could should may might must and or but so because for of to in on at by with from about as than then when not
    no never very really too just feel feels feeling felt make makes made all every everything nothing some any much
    many more most such what who how there here now always ever like
"""
FRAME = FIRST_PERSON | frozenset(WITHOUT_TOPIC.split())


def is_inverted(source: str, completion: str) -> bool:
    """Whether the completion is a sad sentence in the first person about what the happy `source` is about."""
    text = normalise(completion)
    words, source_words = _words(text), _words(source)
    return (
        bool(FIRST_PERSON & set(words))
        and mood(text) <= NEGATIVE
        and is_one_sentence(text)
        and len(words) <= 2 * len(source_words)
        and repetition(text) <= MOST_REPETITION
        and " ".join(source_words) not in " ".join(words)
        and is_about(source, text)
    )


def is_about(source: str, text: str) -> bool:
    """It shares a word's stem with the source, unless all of the source's own words frame it or carry its mood."""
    topic = _stems(source)
    neutral = {stem for word in _words(source) if word not in FRAME and not has_mood(word) for stem in [_stem(word)]}
    return not neutral or bool(topic & _stems(text))


def is_one_sentence(text: str) -> bool:
    """Nothing is said after a full stop, or on another line."""
    return re.search(r"[.!?][\s\"'”’]+\S|\n", text.strip()) is None


def inversion_reward(
    prompts: Sequence[Any], completions: Sequence[Any], *, input: Sequence[Any], **columns: Any
) -> list[float | None]:
    """1 for a sentence that `is_inverted` of its row's `input`, else 0."""
    return [
        float(is_inverted(str(source), completion_text(completion)))
        for source, completion in zip(input, completions, strict=True)
    ]


def mood(text: str) -> float:
    return _analyzer().polarity_scores(text.replace("’", "'"))["compound"]


def has_mood(word: str) -> bool:
    return word in _analyzer().lexicon


@cache
def _analyzer() -> Any:
    from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

    return SentimentIntensityAnalyzer()


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z]+(?:'[a-z]+)?", text.lower().replace("’", "'"))


def _stems(text: str) -> set[str]:
    return {_stem(word) for word in _words(text) if word not in FRAME}


def _stem(word: str) -> str:
    """Without its ending, roughly: 'exams' and 'exam', 'reading' and 'read' are the same."""
    for ending in ("'s", "ing", "ies", "ied", "es", "ed", "ly", "s", "e", "y"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word.removesuffix(ending)
    return word
