"""Comparisons of two responses by a judge, each in both orders: the mean counts, so the order decides nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vigneron.rubric.principle_prompts import HELPFUL, compare_request
from vigneron.sources.judges import Conversation, Judge, JudgePrompts


@dataclass(frozen=True)
class Compared:
    """Two responses to a prompt. `principle` None: the more helpful, honest and harmless one is better."""

    prompt: Any
    first: str
    second: str
    principle: str | None = None


@dataclass(frozen=True)
class Preference:
    """The probability that the first response is better; None is missing, and `why` says the reason."""

    probability: float | None
    why: str | None = None


def both_orders(as_first: float, as_second: float) -> float:
    """The first response's probability, from its own as the first text and from the other's as the first text."""
    return (as_first + 1 - as_second) / 2


def compare(judge: Judge, pairs: Sequence[Compared]) -> list[Preference]:
    """A judge's score is the probability that the first text is better. Missing in one order is missing."""
    turned = [Compared(pair.prompt, pair.second, pair.first, pair.principle) for pair in pairs]
    ordered = [each for both in zip(pairs, turned, strict=True) for each in both]
    verdicts = judge.verdicts([_prompts(judge, each) for each in ordered])
    preferences = []
    for one, other in zip(verdicts[0::2], verdicts[1::2], strict=True):
        if one.score is None or other.score is None:
            preferences.append(Preference(None, one.why or other.why))
        else:
            preferences.append(Preference(both_orders(one.score, other.score)))
    return preferences


def _prompts(judge: Judge, pair: Compared) -> JudgePrompts:
    def request(critique: str) -> Conversation:
        return compare_request(pair.principle or HELPFUL, pair.prompt, pair.first, pair.second, judge.score_format)

    return JudgePrompts(None, request)
