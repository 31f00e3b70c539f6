"""Requests to a judge: each is sent once, parsed strictly, retried once if it cannot be parsed, and cached."""

import json
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Literal, Protocol

from vigneron.sources.answer_cache import AnswerCache, answer_key
from vigneron.sources.client import ChatReply, Failure, Message
from vigneron.sources.parents import Conversation
from vigneron.sources.reply_parsing import (
    JudgeFormat,
    Score,
    UnparsableReply,
    judge_retry_message,
    parse_digits,
    parse_score,
    parse_text,
    parse_yes_probability,
    score_probability,
)


@dataclass(frozen=True)
class JudgeRequest:
    conversation: Conversation
    reply_format: JudgeFormat
    temperature: float = 0.0
    sample: int = 0
    """Index among several replies to the same conversation."""

    @property
    def messages(self) -> list[Message]:
        return [{"role": role, "content": content} for role, content in self.conversation]


@dataclass(frozen=True)
class JudgeCall:
    """The messages sent for a request; on a retry they include the reply that could not be parsed."""

    request: JudgeRequest
    messages: list[Message]


@dataclass(frozen=True)
class JudgeReply:
    """A parsed reply, or why there is none."""

    text: str | None
    score: Score | None = None
    why: str | None = None
    tokens_in: int = 0
    tokens_out: int = 0


class JudgeBackend(Protocol):
    """The model behind a judge. `source` identifies it in the cache; `batch_size` calls of one format go together."""

    source: str
    batch_size: int

    @property
    def notice(self) -> str | None: ...

    def check(self) -> list[ChatReply]:
        """Raise a `UserError` if it cannot reply; returns the replies this took."""
        ...

    def replies(self, calls: Sequence[JudgeCall]) -> list[ChatReply | Failure]: ...
    def stop(self) -> None: ...


@dataclass(frozen=True)
class JudgeSettings:
    """How a judge is prompted and parsed. `where` is the config key that messages name."""

    model: str
    where: str
    confidence: Literal["verbal", "agreement", "logprob"] = "verbal"
    samples: int = 1
    temperature: float = 0.0
    max_tokens: int | None = None
    score_format: Literal["score", "yes_no", "digits"] = "score"


class JudgeClient:
    """Sends requests to one backend. Without a cache nothing is stored."""

    def __init__(self, settings: JudgeSettings, backend: JudgeBackend, cache: AnswerCache | None) -> None:
        self.settings, self.backend, self._cache = settings, backend, cache
        self.calls = self.cached = 0
        self.tokens = (0, 0)
        self._counting = Lock()

    def check(self) -> None:
        self._count(self.backend.check())

    def send(self, requests: Sequence[JudgeRequest]) -> list[JudgeReply]:
        """Equal requests are sent once; the first of them carries the token counts."""
        distinct = list(dict.fromkeys(requests))
        size = self.backend.batch_size
        by_request: dict[JudgeRequest, JudgeReply] = {}
        for start in range(0, len(distinct), size):
            by_request |= self._send_batch(distinct[start : start + size])
        replies = []
        for request in requests:
            replies.append(by_request[request])
            by_request[request] = replace(by_request[request], tokens_in=0, tokens_out=0)
        return replies

    def key(self, request: JudgeRequest) -> str:
        parameters = {
            "temperature": request.temperature,
            "max_tokens": self.settings.max_tokens,
            "sample": request.sample,
            "reads": request.reply_format,
            "logprob": self._by_logprob(request),
        }
        return answer_key(self.settings.model, self.backend.source, request.messages, parameters)

    def _send_batch(self, batch: Sequence[JudgeRequest]) -> dict[JudgeRequest, JudgeReply]:
        """The batch is sent whole unless all of it is cached: a local model's rounding depends on the batch, and a run
        that was killed and resumed must compute the same scores."""
        known = {request: reply for request in batch if (reply := self._load(request)) is not None}
        with self._counting:
            self.cached += len(known)
        return known if len(known) == len(batch) else {**self._call(batch, known), **known}

    def _call(self, batch: Sequence[JudgeRequest], known: Container[JudgeRequest]) -> dict[JudgeRequest, JudgeReply]:
        parsed: dict[JudgeRequest, JudgeReply] = {}
        calls = [JudgeCall(request, request.messages) for request in batch]
        for _ in range(2):
            replies = self.backend.replies(calls)
            self._count(replies)
            retries: list[JudgeCall] = []
            for call, reply in zip(calls, replies, strict=True):
                request = call.request
                parsed[request], error = self._parse(request, reply, parsed.get(request))
                if error is not None and isinstance(reply, ChatReply):
                    retries.append(_retry(request, reply, error))
                elif request not in known:
                    self._store(request, parsed[request])
            calls = retries
            if not calls:
                break
        return parsed

    def _parse(
        self, request: JudgeRequest, reply: ChatReply | Failure, before: JudgeReply | None
    ) -> tuple[JudgeReply, str | None]:
        """The parsed reply, with the tokens of both attempts, and the error to send back to the judge."""
        if isinstance(reply, Failure):
            return before or JudgeReply(None, why=reply.why), None
        earlier = before or JudgeReply(None)
        tokens = earlier.tokens_in + reply.tokens_in, earlier.tokens_out + reply.tokens_out
        try:
            score = self._score(request, reply)
        except UnparsableReply as error:
            return JudgeReply(None, None, f"its reply {reply.text[:60]!r}: {error}", *tokens), str(error)
        if score is not None and self._by_logprob(request):
            probability = score_probability(reply.text, score.number_span, reply.token_logprobs)
            if probability is None:
                return JudgeReply(None, None, "its reply came without log-probs of its tokens", *tokens), None
            score = replace(score, confidence=probability)
        return JudgeReply(reply.text, score, None, *tokens), None

    def _score(self, request: JudgeRequest, reply: ChatReply) -> Score | None:
        if reply.refusal:
            raise UnparsableReply(f"it refused ({reply.refusal[:60]!r})")
        if reply.truncated and request.reply_format != "critique":  # a truncated critique is usable, a score is not
            limit, where = self.settings.max_tokens, self.settings.where
            key = f"`max_tokens` in {where}" if where.startswith("--") else f"`{where}.max_tokens`"
            raise UnparsableReply(f"it was cut after {limit} tokens ({key})")
        return self._score_in(request, reply.text)

    def _score_in(self, request: JudgeRequest, text: str) -> Score | None:
        parse_text(text)
        if request.reply_format == "yes_no":
            return parse_yes_probability(text)
        if request.reply_format == "digits":
            return parse_digits(text)
        return (
            parse_score(text, verbal=self.settings.confidence == "verbal") if request.reply_format == "score" else None
        )

    def _store(self, request: JudgeRequest, reply: JudgeReply) -> None:
        """The text as it came; with `logprob`, also the confidence from its tokens."""
        if self._cache is None or reply.text is None:
            return
        answer = reply.text
        if reply.score is not None and self._by_logprob(request):
            answer = json.dumps([reply.text, reply.score.confidence])
        self._cache.put(self.key(request), answer, self.settings.model)

    def _load(self, request: JudgeRequest) -> JudgeReply | None:
        """The cached reply; None if there is none or it can no longer be parsed."""
        answer = self._cache.get(self.key(request)) if self._cache is not None else None
        if answer is None:
            return None
        try:
            if not self._by_logprob(request):
                return JudgeReply(answer, self._score_in(request, answer))
            text, confidence = json.loads(answer)
            score = self._score_in(request, text)
        except (ValueError, TypeError):
            return None
        return JudgeReply(text, score and replace(score, confidence=confidence))

    def _by_logprob(self, request: JudgeRequest) -> bool:
        return request.reply_format == "score" and self.settings.confidence == "logprob"

    def _count(self, replies: Sequence[ChatReply | Failure]) -> None:
        received = [reply for reply in replies if isinstance(reply, ChatReply)]
        with self._counting:
            self.calls += len(replies)
            self.tokens = (
                self.tokens[0] + sum(reply.tokens_in for reply in received),
                self.tokens[1] + sum(reply.tokens_out for reply in received),
            )


def _retry(request: JudgeRequest, reply: ChatReply, error: str) -> JudgeCall:
    """At temperature 0 the same messages give the same reply, so the retry adds that reply and what is wrong with
    it."""
    text = reply.text.strip().encode("utf-8", "replace").decode() or "…"
    message = judge_retry_message(error, request.reply_format).encode("utf-8", "replace").decode()
    return JudgeCall(
        request, [*request.messages, {"role": "assistant", "content": text}, {"role": "user", "content": message}]
    )
