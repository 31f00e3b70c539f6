"""Questions to a judge: each is asked once, read strictly, asked once more if it could not be read, and kept."""

import json
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Literal, Protocol

from vigneron.sources.answer_cache import AnswerCache, answer_key
from vigneron.sources.client import Failure, Message, Reply
from vigneron.sources.judge_reading import (
    JudgeReads,
    Score,
    judge_complaint,
    number_probability,
    read_score,
    read_words,
    read_yes,
)
from vigneron.sources.parents import Conversation
from vigneron.sources.reading import Unreadable


@dataclass(frozen=True)
class Question:
    conversation: Conversation
    reads: JudgeReads
    temperature: float = 0.0
    sample: int = 0
    """Which of several replies to the same conversation."""

    @property
    def messages(self) -> list[Message]:
        return [{"role": role, "content": content} for role, content in self.conversation]


@dataclass(frozen=True)
class Turn:
    """A question as it is sent; the second time with the reply that could not be read."""

    question: Question
    messages: list[Message]


@dataclass(frozen=True)
class Told:
    """A reply that could be read, or why there is none."""

    text: str | None
    score: Score | None = None
    why: str | None = None
    tokens_in: int = 0
    tokens_out: int = 0


class Voice(Protocol):
    """Who replies. `source` identifies it; `at_once` questions, all of one kind, go together."""

    source: str
    at_once: int
    notice: str | None

    def check(self) -> list[Reply]:
        """Whether it can answer at all, and the replies that it took to find out."""
        ...

    def replies(self, turns: Sequence[Turn]) -> list[Reply | Failure]: ...
    def stop(self) -> None: ...


@dataclass(frozen=True)
class Manner:
    """How a judge is asked and read. `where` is the config's key that lines for the user name."""

    model: str
    where: str
    confidence: Literal["verbal", "agreement", "logprob"] = "verbal"
    samples: int = 1
    temperature: float = 0.0
    max_tokens: int | None = None
    scores_by: Literal["score", "yes_no"] = "score"


class Answering:
    """Answers of one voice. Without a cache nothing is kept."""

    def __init__(self, manner: Manner, voice: Voice, cache: AnswerCache | None) -> None:
        self.manner, self.voice, self._cache = manner, voice, cache
        self.calls = self.cached = 0
        self.tokens = (0, 0)
        self._counting = Lock()

    def check(self) -> None:
        self._count(self.voice.check())

    def told(self, questions: Sequence[Question]) -> list[Told]:
        """The same question is asked once; what that cost is the first one's."""
        distinct = list(dict.fromkeys(questions))
        told: dict[Question, Told] = {}
        for start in range(0, len(distinct), self.voice.at_once):
            told |= self._batch(distinct[start : start + self.voice.at_once])
        found = []
        for question in questions:
            found.append(told[question])
            told[question] = replace(told[question], tokens_in=0, tokens_out=0)
        return found

    def key(self, question: Question) -> str:
        parameters = {
            "temperature": question.temperature,
            "max_tokens": self.manner.max_tokens,
            "sample": question.sample,
            "reads": question.reads,
            "logprob": self._by_logprob(question),
        }
        return answer_key(self.manner.model, self.voice.source, question.messages, parameters)

    def _batch(self, batch: Sequence[Question]) -> dict[Question, Told]:
        """A batch is the same whatever of it is known already: a local model's rounding depends on who is beside whom,
        and a run that was killed and resumed must come to the same numbers."""
        known = {question: told for question in batch if (told := self._kept(question)) is not None}
        with self._counting:
            self.cached += len(known)
        return known if len(known) == len(batch) else {**self._asked(batch, known), **known}

    def _asked(self, batch: Sequence[Question], known: Container[Question]) -> dict[Question, Told]:
        told: dict[Question, Told] = {}
        turns = [Turn(question, question.messages) for question in batch]
        for _ in range(2):
            replies = self.voice.replies(turns)
            self._count(replies)
            unread: list[Turn] = []
            for turn, reply in zip(turns, replies, strict=True):
                question = turn.question
                told[question], wrong = self._read(question, reply, told.get(question))
                if wrong is not None and isinstance(reply, Reply):
                    unread.append(_again(question, reply, wrong))
                elif question not in known:
                    self._keep(question, told[question])
            turns = unread
            if not turns:
                break
        return told

    def _read(self, question: Question, reply: Reply | Failure, before: Told | None) -> tuple[Told, str | None]:
        """What it says, with the tokens of both attempts, and what to tell the judge."""
        if isinstance(reply, Failure):
            return before or Told(None, why=reply.why), None
        earlier = before or Told(None)
        tokens = earlier.tokens_in + reply.tokens_in, earlier.tokens_out + reply.tokens_out
        try:
            score = self._score(question, reply)
        except Unreadable as wrong:
            return Told(None, None, f"its reply {reply.text[:60]!r}: {wrong}", *tokens), str(wrong)
        if score is not None and self._by_logprob(question):
            probability = number_probability(reply.text, score.digits, reply.pieces)
            if probability is None:
                return Told(None, None, "its reply came without log-probs of its tokens", *tokens), None
            score = replace(score, confidence=probability)
        return Told(reply.text, score, None, *tokens), None

    def _score(self, question: Question, reply: Reply) -> Score | None:
        if reply.refusal:
            raise Unreadable(f"it refused ({reply.refusal[:60]!r})")
        if reply.cut and question.reads != "critique":  # a critique may lack its end, a score not
            raise Unreadable(f"it was cut after {self.manner.max_tokens} tokens (`{self.manner.where}.max_tokens`)")
        return self._score_in(question, reply.text)

    def _score_in(self, question: Question, text: str) -> Score | None:
        read_words(text)
        if question.reads == "yes_no":
            return read_yes(text)
        return read_score(text, verbal=self.manner.confidence == "verbal") if question.reads == "score" else None

    def _keep(self, question: Question, told: Told) -> None:
        """The reply as it came; with `logprob` also what its tokens said."""
        if self._cache is None or told.text is None:
            return
        answer = told.text
        if told.score is not None and self._by_logprob(question):
            answer = json.dumps([told.text, told.score.confidence])
        self._cache.put(self.key(question), answer, self.manner.model)

    def _kept(self, question: Question) -> Told | None:
        """What was kept is read again; what cannot be read, by whatever has become of it, is asked again."""
        answer = self._cache.get(self.key(question)) if self._cache is not None else None
        if answer is None:
            return None
        try:
            if not self._by_logprob(question):
                return Told(answer, self._score_in(question, answer))
            text, confidence = json.loads(answer)
            score = self._score_in(question, text)
        except (ValueError, TypeError):
            return None
        return Told(text, score and replace(score, confidence=confidence))

    def _by_logprob(self, question: Question) -> bool:
        return question.reads == "score" and self.manner.confidence == "logprob"

    def _count(self, replies: Sequence[Reply | Failure]) -> None:
        came = [reply for reply in replies if isinstance(reply, Reply)]
        with self._counting:
            self.calls += len(replies)
            self.tokens = (
                self.tokens[0] + sum(reply.tokens_in for reply in came),
                self.tokens[1] + sum(reply.tokens_out for reply in came),
            )


def _again(question: Question, reply: Reply, wrong: str) -> Turn:
    """At temperature 0 the same question has the same answer: so its reply goes with it, and what was wrong."""
    said = reply.text.strip().encode("utf-8", "replace").decode() or "…"
    told = judge_complaint(wrong, question.reads).encode("utf-8", "replace").decode()
    return Turn(
        question, [*question.messages, {"role": "assistant", "content": said}, {"role": "user", "content": told}]
    )
