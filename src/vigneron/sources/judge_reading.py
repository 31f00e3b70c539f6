"""Reading a judge's reply: strictly, so that no prose, no refusal and no number out of range becomes a score."""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any, Literal

from vigneron.sources.reading import FENCE, Unreadable

JudgeReads = Literal["critique", "text", "score", "yes_no"]
"""What a reply is read as. score: JSON. yes_no: the probability of yes, as a local judge computes it."""

SCORE_FORMAT = {
    "type": "json_schema",
    "json_schema": {
        "name": "verdict",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {
                "reasoning": {"type": "string"},
                "score": {"type": "number"},
                "confidence": {"type": "number"},
            },
            "required": ["reasoning", "score", "confidence"],
            "additionalProperties": False,
        },
    },
}
"""The request for structured output. Without bounds, which some endpoints refuse in a schema: the parser has them."""

KEYS = ("reasoning", "score", "confidence")
# An unescaped quote ends a JSON text: this stands nowhere inside one.
NUMBER = re.compile(r'(?<!\\)"score"\s*:\s*(-?[0-9][0-9.eE+-]*)')


@dataclass(frozen=True)
class Score:
    """What a readable reply says. `digits` is where its text writes the score."""

    score: float
    confidence: float
    reasoning: str
    digits: tuple[int, int] = (0, 0)


def read_score(text: str, *, verbal: bool = True) -> Score:
    """The whole reply is one JSON object of `KEYS`, in one fence at most. `verbal`: the confidence is needed."""
    found = _pairs(text)
    keys = [key for key, _ in found]
    for key in keys:
        if key not in KEYS:
            raise Unreadable(f"it has the key {_shown(key)}, which was not asked for")
        if keys.count(key) > 1:
            raise Unreadable(f'it has "{key}" twice')
    for key in KEYS:
        if key not in keys and (verbal or key != "confidence"):
            raise Unreadable(f'it has no "{key}"')
    said = dict(found)
    if not isinstance(said["reasoning"], str):
        raise Unreadable(f"reasoning is {_shown(said['reasoning'])}, not a text")
    score = _share(said["score"], "score")
    confidence = _share(said["confidence"], "confidence") if verbal else 1.0
    digits = NUMBER.search(text)
    return Score(score, confidence, valid_unicode(said["reasoning"].strip()), digits.span(1) if digits else (0, 0))


def read_yes(text: str) -> Score:
    """A probability of yes against no, which is its own confidence: the further from a coin's, the surer."""
    p = _share(float(text), "the probability of yes")
    return Score(p, abs(2 * p - 1), f"the probability of yes against no is {p:.3f}")


def read_words(text: str) -> str:
    text = valid_unicode(text.strip())
    if not text:
        raise Unreadable("it was empty")
    return text


def valid_unicode(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Unreadable("it was not valid Unicode") from None
    return text


def judge_complaint(wrong: str, reads: JudgeReads) -> str:
    """What a judge is told whose reply could not be read."""
    form = {
        "score": "one JSON object and nothing else, with no words around it: "
        '{"reasoning": "<why>", "score": <number from 0 to 1>, "confidence": <number from 0 to 1>}',
        "critique": "the critique alone, in a few sentences",
        "yes_no": "one word, yes or no",
    }.get(reads, "the answer alone")
    return f"That could not be read: {wrong}. Reply with {form}."


def number_probability(reply: str, digits: tuple[int, int], pieces: Sequence[tuple[bytes, float]]) -> float | None:
    """exp of the mean log-prob of the tokens that write the score. None where they do not write this reply."""
    start, end = (len(reply[:at].encode()) for at in digits)
    if start == end or not b"".join(piece for piece, _ in pieces).startswith(reply.encode()):
        return None
    at, written = 0, []
    for piece, logprob in pieces:
        if at < end and at + len(piece) > start:
            written.append(logprob)
        at += len(piece)
    probability = math.exp(min(0.0, fmean(written)))
    return None if math.isnan(probability) else probability


def agreed(scores: Sequence[Score]) -> Score:
    """Of several replies to one question: their mean, and as confidence 1 − 2σ. Two that stand at 0 and 1 agree on
    nothing. The reasoning is the reply's that is nearest to the mean."""
    values = [each.score for each in scores]
    mean = fmean(values)
    nearest = min(scores, key=lambda each: abs(each.score - mean))
    return Score(mean, min(1.0, max(0.0, 1.0 - 2.0 * pstdev(values))), nearest.reasoning)


def _pairs(text: str) -> list[tuple[str, Any]]:
    fenced = FENCE.fullmatch(text.strip())
    try:
        found = json.loads(fenced[1] if fenced else text, object_pairs_hook=list)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not all(isinstance(pair, tuple) for pair in found):
        raise Unreadable("it was not one JSON object and nothing else" if text.strip() else "it was empty")
    return found


def _share(value: Any, name: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise Unreadable(f"{name} is {_shown(value)}, not a number")
    if not 0 <= value <= 1:
        raise Unreadable(f"{name} is {_shown(value)}, not within 0 and 1")
    return float(value)


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:40] + "…"
