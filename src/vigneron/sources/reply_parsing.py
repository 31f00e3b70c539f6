"""Strict parsing of a parent's or a judge's reply: no prose, refusal or number out of range becomes an answer or a
score.

The text of an `UnparsableReply` is sent back to the model, and is part of what a cached answer depends on.
"""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any, Literal

from vigneron.values import is_number

AnswerFormat = Literal["json", "text"]
"""Format of a parent's answer, as in `parent.reads`."""
JudgeFormat = Literal["critique", "text", "score", "yes_no", "digits"]
"""Format of a judge's reply. score: JSON. yes_no: the probability of yes, as a local judge computes it. digits: the
probabilities of 1 to 10 as a JSON list, as the backend reads them off the first token."""

# Several tokens may spell one digit, each with a probability of up to 1.
MOST_WEIGHT = 1000
DIGITS = tuple(str(digit).encode() for digit in range(1, 11))
SCORE_KEYS = ("reasoning", "score", "confidence")
# JSON escapes quotes inside strings, so this matches the key only.
SCORE_NUMBER = re.compile(r'(?<!\\)"score"\s*:\s*(-?[0-9][0-9.eE+-]*)')

SCORE_SCHEMA = {
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
"""`response_format` for structured output. Some endpoints refuse bounds in a schema, so the parser checks them."""


class UnparsableReply(ValueError):
    """The reason a reply cannot be parsed."""


@dataclass(frozen=True)
class Score:
    """A parsed score. `number_span` is where the reply's text has the number."""

    score: float
    confidence: float
    reasoning: str
    number_span: tuple[int, int] = (0, 0)


def parse_answer(text: str, reads: AnswerFormat) -> str:
    """A parent's answer, one line. json: the reply is {"OUTPUT": …}, optionally in a code fence. text: the whole
    reply."""
    answer = _json_answer(text) if reads == "json" else _text_answer(text)
    if not answer:
        raise UnparsableReply("it was empty")
    if len(answer.splitlines()) > 1:
        raise UnparsableReply("it had more than one line")
    return valid_unicode(answer)


def _text_answer(text: str) -> str:
    """Without one pair of surrounding quotes, which examples in an instruction invite."""
    text = text.strip()
    if text.startswith("{") and text.endswith("}"):
        raise UnparsableReply("it was JSON")
    quoted = re.fullmatch(r'"([^"]*)"|“([^“”]*)”', text)
    return (quoted[1] or quoted[2] or "").strip() if quoted else text


def _json_answer(text: str) -> str:
    pairs = _json_pairs(text.strip())
    if [key for key, _ in pairs] != ["OUTPUT"]:
        raise UnparsableReply('its only key was not "OUTPUT"')
    output: Any = pairs[0][1]
    if not isinstance(output, str):
        raise UnparsableReply('"OUTPUT" was not a text')
    return output.strip()


def parse_score(text: str, *, verbal: bool = True) -> Score:
    """The reply is one JSON object of `SCORE_KEYS`, optionally in a code fence. `verbal`: the confidence is
    required."""
    pairs = _json_pairs(text, if_empty="it was empty")
    keys = [key for key, _ in pairs]
    for key in keys:
        if key not in SCORE_KEYS:
            raise UnparsableReply(f"it has the key {_shown(key)}, which was not asked for")
        if keys.count(key) > 1:
            raise UnparsableReply(f'it has "{key}" twice')
    for key in SCORE_KEYS:
        if key not in keys and (verbal or key != "confidence"):
            raise UnparsableReply(f'it has no "{key}"')
    values = dict(pairs)
    if not isinstance(values["reasoning"], str):
        raise UnparsableReply(f"reasoning is {_shown(values['reasoning'])}, not a text")
    score = _unit_interval(values["score"], "score")
    confidence = _unit_interval(values["confidence"], "confidence") if verbal else 1.0
    number = SCORE_NUMBER.search(text)
    return Score(score, confidence, valid_unicode(values["reasoning"].strip()), number.span(1) if number else (0, 0))


def parse_yes_probability(text: str) -> Score:
    """The probability p of yes against no, as the score; its confidence is |2p − 1|."""
    p = _unit_interval(float(text), "the probability of yes")
    return Score(p, abs(2 * p - 1), f"the probability of yes against no is {p:.3f}")


def parse_digits(text: str) -> Score:
    """d-RLAIF's score (Lee et al. 2024): the expected digit Σ i·P(i) over 1 to 10, rescaled to 0 to 1.

    P is normalised over the ten digits. The confidence is 1 − 2σ of the rescaled digit, as for several replies.
    """
    try:
        weights = json.loads(text)
    except (ValueError, RecursionError):  # the judge's own text, where no digit is likely
        weights = None
    if not isinstance(weights, list) or len(weights) != len(DIGITS) or not _are_weights(weights):
        raise UnparsableReply("it did not begin with a number from 1 to 10")
    total = math.fsum(weights)
    values = [place / 9 for place in range(len(weights))]
    score = math.fsum(weight * value for weight, value in zip(weights, values, strict=True)) / total
    spread = math.fsum(weight * (value - score) ** 2 for weight, value in zip(weights, values, strict=True)) / total
    score = min(1.0, max(0.0, score))
    confidence = min(1.0, max(0.0, 1 - 2 * math.sqrt(spread)))
    return Score(score, confidence, f"the expected digit is {1 + 9 * score:.2f} of 10")


def _are_weights(values: Sequence[Any]) -> bool:
    return all(is_number(value) and 0 <= value <= MOST_WEIGHT for value in values) and any(values)


def digit_probabilities(positions: Sequence[Sequence[tuple[bytes, float]]], sampled: Sequence[bytes]) -> list[float]:
    """P(1) … P(10) from the likeliest tokens, with log-probs, at the first positions of a reply, and the tokens sampled
    there. Positions that are only space are skipped.

    A tokenizer may write 10 as one token or as 1 and 0. Where the reply begins with 1, the position after it splits the
    probability of 1 into that of 1 and of 10; where it does not, how often 1 would become 10 is not known, and the
    token 1 counts as 1.
    """
    at = next((place for place, token in enumerate(sampled) if token.strip()), len(sampled))
    probabilities = [0.0] * 10
    for token, logprob in positions[at] if at < len(positions) else ():
        if token.strip() in DIGITS:
            probabilities[DIGITS.index(token.strip())] += math.exp(min(0.0, logprob))
    if at + 1 < len(positions) and sampled[at].strip() == b"1":
        becomes_ten = min(1.0, sum(math.exp(min(0.0, p)) for token, p in positions[at + 1] if token == b"0"))
        probabilities[0], probabilities[9] = (
            probabilities[0] * (1 - becomes_ten),
            probabilities[9] + probabilities[0] * becomes_ten,
        )
    return probabilities


def parse_text(text: str) -> str:
    text = valid_unicode(text.strip())
    if not text:
        raise UnparsableReply("it was empty")
    return text


def valid_unicode(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UnparsableReply("it was not valid Unicode") from None
    return text


def parent_retry_message(reason: str, reads: AnswerFormat) -> str:
    """The user message that asks a parent again after a reply that could not be parsed."""
    form = '{"OUTPUT": "<answer>"} and nothing else' if reads == "json" else "the answer alone, on one line"
    return f"That could not be read: {reason}. Reply with {form}."


def judge_retry_message(reason: str, reply_format: JudgeFormat) -> str:
    """The user message that asks a judge again after a reply that could not be parsed."""
    form = {
        "score": "one JSON object and nothing else, with no words around it: "
        '{"reasoning": "<why>", "score": <number from 0 to 1>, "confidence": <number from 0 to 1>}',
        "critique": "the critique alone, in a few sentences",
        "yes_no": "one word, yes or no",
        "digits": "one whole number from 1 to 10 and nothing before it",
    }.get(reply_format, "the answer alone")
    return f"That could not be read: {reason}. Reply with {form}."


def score_probability(
    reply: str, number_span: tuple[int, int], token_logprobs: Sequence[tuple[bytes, float]]
) -> float | None:
    """exp of the mean log-prob of the tokens that spell the score; None if the tokens do not spell this reply."""
    start, end = (len(reply[:at].encode()) for at in number_span)
    if start == end or not b"".join(token for token, _ in token_logprobs).startswith(reply.encode()):
        return None
    at, of_number = 0, []
    for token, logprob in token_logprobs:
        if at < end and at + len(token) > start:
            of_number.append(logprob)
        at += len(token)
    probability = math.exp(min(0.0, fmean(of_number)))
    return None if math.isnan(probability) else probability


def combine_scores(scores: Sequence[Score]) -> Score:
    """Several replies to one request as one score: their mean, with confidence 1 − 2σ (0 for scores of 0 and 1). The
    reasoning is that of the reply nearest to the mean."""
    values = [each.score for each in scores]
    mean = fmean(values)
    nearest = min(scores, key=lambda each: abs(each.score - mean))
    return Score(mean, min(1.0, max(0.0, 1.0 - 2.0 * pstdev(values))), nearest.reasoning)


def unfenced(text: str) -> str:
    """The content of the code fence, if the whole text is one."""
    first, newline, rest = text.strip().partition("\n")
    if not newline or first.rstrip(" \t") not in ("```", "```json") or not rest.endswith("```"):
        return text
    return rest.removesuffix("```").rstrip(" \t").removesuffix("\n")


def _json_pairs(text: str, *, if_empty: str = "it was not one JSON object and nothing else") -> list[tuple[str, Any]]:
    """The keys and values of the one JSON object that the text is, repeated keys included."""
    try:
        pairs = json.loads(unfenced(text), object_pairs_hook=list)
    except (ValueError, RecursionError):
        pairs = None
    if not isinstance(pairs, list) or not all(isinstance(pair, tuple) for pair in pairs):
        raise UnparsableReply("it was not one JSON object and nothing else" if text.strip() else if_empty)
    return pairs


def _unit_interval(value: Any, name: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise UnparsableReply(f"{name} is {_shown(value)}, not a number")
    if not 0 <= value <= 1:
        raise UnparsableReply(f"{name} is {_shown(value)}, not within 0 and 1")
    return float(value)


def _shown(value: Any) -> str:
    try:
        text = json.dumps(value)
    except RecursionError:
        text = f"a {type(value).__name__}, nested deeply"
    return text if len(text) <= 40 else text[:40] + "…"
