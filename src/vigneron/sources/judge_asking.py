"""What all judges have in common: a judgement is a critique and then a score (`rlmt-grape` 5b), or a score alone.

What fails on the way is missing, never 0.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import RLock
from typing import Literal

from vigneron.sources.client import Failure
from vigneron.sources.judge_questions import Answering, Question, Told
from vigneron.sources.judge_reading import agreed
from vigneron.sources.parents import Conversation
from vigneron.sources.verdict import Verdict


@dataclass(frozen=True)
class Asked:
    """One judgement. `critique` None: no critique is asked for. `score`: given the critique, "" where there is none."""

    critique: Conversation | None
    score: Callable[[str], Conversation]


class AskingJudge:
    """Asks in the thread that calls, batch by batch: all critiques first, then all scores."""

    waits = False

    def __init__(self, name: str, answering: Answering) -> None:
        self.name, self._answering = name, answering
        self._one_caller = RLock()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"

    @property
    def asks(self) -> Literal["json", "yes_no"]:
        return "yes_no" if self._answering.manner.scores_by == "yes_no" else "json"

    @property
    def tokens(self) -> tuple[int, int]:
        """In and out so far, as far as is known."""
        return self._answering.tokens

    @property
    def calls(self) -> int:
        return self._answering.calls

    @property
    def cached(self) -> int:
        """Questions so far that needed no call."""
        return self._answering.cached

    @property
    def notice(self) -> str | None:
        """What the user should know of how it is asked."""
        return self._answering.voice.notice

    def preflight(self) -> None:
        """A wrong key, address or model shows here, as one line."""
        self._answering.check()

    def verdicts(self, asked: Sequence[Asked]) -> list[Verdict]:
        with self._one_caller:
            return self._judged(asked)

    def texts(self, conversations: Sequence[Conversation]) -> list[str | Failure]:
        """Plain replies."""
        with self._one_caller:
            return self._replied(conversations)

    def stop(self) -> None:
        self._answering.voice.stop()

    def _judged(self, asked: Sequence[Asked]) -> list[Verdict]:
        found = iter(self._answering.told([Question(each.critique, "critique") for each in asked if each.critique]))
        critiques = [next(found) if each.critique else Told("") for each in asked]
        manner = self._answering.manner
        samples, temperature = (manner.samples, manner.temperature) if manner.confidence == "agreement" else (1, 0.0)
        questions = [
            Question(each.score(critique.text.strip()), manner.scores_by, temperature, sample)
            for each, critique in zip(asked, critiques, strict=True)
            if critique.text is not None
            for sample in range(samples)
        ]
        scores = iter(self._answering.told(questions))
        return [
            verdict_of(critique, [next(scores) for _ in range(samples)] if critique.text is not None else [])
            for critique in critiques
        ]

    def _replied(self, conversations: Sequence[Conversation]) -> list[str | Failure]:
        found = self._answering.told([Question(each, "text") for each in conversations])
        return [Failure(told.why or "") if told.text is None else told.text.strip() for told in found]


def verdict_of(critique: Told, replies: Sequence[Told]) -> Verdict:
    """Of a critique and one reply, or several. Of several, half at least must be readable, and two: one alone agrees
    with nobody."""
    tokens_in = critique.tokens_in + sum(told.tokens_in for told in replies)
    tokens_out = critique.tokens_out + sum(told.tokens_out for told in replies)
    if critique.text is None:
        return Verdict.missing(f"its critique: {critique.why}", tokens_in=tokens_in, tokens_out=tokens_out)
    words, of = critique.text.strip(), len(replies)
    scores = [told.score for told in replies if told.score is not None]
    if 2 * len(scores) < of or len(scores) < min(2, of):
        why = next(told.why or "" for told in replies if told.score is None)
        why = why if of == 1 else f"{of - len(scores)} of {of} replies failed: {why}"
        return Verdict.missing(why, critique=words, tokens_in=tokens_in, tokens_out=tokens_out)
    score = scores[0] if of == 1 else agreed(scores)
    return Verdict(score.score, score.confidence, score.reasoning, words, None, tokens_in, tokens_out)
