"""Parents: PGSRM's stronger models, whose answers the trained model (the child) is rewarded for coming near to.

Each prompt is answered once, greedily, and the answer is cached. Requests to an endpoint run in several threads; a
local model answers in batches. The first request is sent alone, so that a broken parent fails before anything else is
loaded or paid for.
"""

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Protocol

from vigneron.config import EndpointParentConfig, LocalParentConfig
from vigneron.errors import UserError
from vigneron.policy.message_forms import message_text
from vigneron.sources.answer_cache import AnswerCache, answer_key
from vigneron.sources.client import ChatReply, Client, Failure, Message, base_url
from vigneron.sources.reply_parsing import AnswerFormat, UnparsableReply, parent_retry_message, parse_answer
from vigneron.threads import DaemonPool

Conversation = tuple[tuple[str, str], ...]
"""Pairs of role and content: hashable messages."""


@dataclass(frozen=True)
class Outcome:
    """An answer, or why there is none."""

    answer: str | None
    why: str | None = None
    refused: bool = False
    unreachable: bool = False
    tokens_in: int = 0
    tokens_out: int = 0


NOT_SENT = Outcome(None, "not sent: too many other requests failed")


@dataclass(frozen=True)
class Answers:
    """In the order of the prompts."""

    outcomes: list[Outcome]
    sent: int
    """Distinct prompts sent now."""
    cached: int
    """Distinct prompts whose answer was cached."""

    @property
    def missing(self) -> int:
        return sum(outcome.answer is None for outcome in self.outcomes)

    @property
    def tokens(self) -> tuple[int, int]:
        """Input and output tokens, where the endpoint reports them."""
        distinct = {id(outcome): outcome for outcome in self.outcomes}.values()
        return sum(o.tokens_in for o in distinct), sum(o.tokens_out for o in distinct)


class ParentBackend(Protocol):
    """The model behind a parent. `source` identifies it in the cache; `workers` threads send `batch_size` prompts
    each."""

    @property
    def source(self) -> str: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def workers(self) -> int: ...
    def check(self) -> None: ...
    def stop(self) -> None: ...
    def replies(self, conversations: Sequence[list[Message]], *, first: bool) -> list[ChatReply | Failure]: ...


def conversation(instruction: str | None, prompt: str | Sequence[Message]) -> Conversation:
    """The instruction as the system message, then the prompt: a user message, or messages as they are."""
    turns = [("user", prompt)] if isinstance(prompt, str) else [(m["role"], message_text(m)) for m in prompt]
    return tuple([("system", instruction), *turns] if instruction else turns)


@dataclass
class Parent:
    """A stronger model with a cache of its answers. `reads`: the format that its replies are parsed as."""

    model: str
    reads: AnswerFormat
    max_tokens: int
    backend: ParentBackend
    cache: AnswerCache = field(repr=False)

    def cached(self, questions: Sequence[Conversation]) -> dict[Conversation, Outcome]:
        """The answers that are in the cache."""
        stored = {question: self.cache.get(self._key(question)) for question in dict.fromkeys(questions)}
        return {question: Outcome(answer) for question, answer in stored.items() if answer is not None}

    def answer(
        self,
        questions: Sequence[Conversation],
        *,
        allowed_missing: int | None = None,
        progress: Callable[[int, int], None] = lambda done, of: None,
    ) -> Answers:
        """Answers are cached as they arrive. After more than `allowed_missing` failures nothing more is sent."""
        known = self.cached(questions)
        waiting = [question for question in dict.fromkeys(questions) if question not in known]
        cached, failed, of = len(known), 0, len(waiting)
        with closing(self._outcomes(waiting)) as outcomes:
            for done, (question, outcome) in enumerate(outcomes, start=1):
                known[question] = outcome
                failed += outcome.answer is None
                progress(done, of)
                if allowed_missing is not None and failed > allowed_missing:
                    break
        return Answers([known.get(q, NOT_SENT) for q in questions], sent=len(known) - cached, cached=cached)

    def _outcomes(self, waiting: Sequence[Conversation]) -> Generator[tuple[Conversation, Outcome], None, None]:
        """In order of arrival. If the caller stops early, requests in flight still finish and are cached; Ctrl-C during
        that wait aborts them."""
        first, rest = self._first(waiting)
        yield from first
        size = self.backend.batch_size
        batches = [rest[i : i + size] for i in range(0, len(rest), size)]
        pool = DaemonPool(self.backend.workers, "parent")
        pending: set[Future[list[tuple[Conversation, Outcome]]]] = set()
        try:
            for batch in batches:
                pending.add(pool.submit(self._answer_batch, batch))
            while pending:
                finished, pending = wait(pending, return_when=FIRST_COMPLETED)
                for future in finished:
                    yield from future.result()
        except BaseException:  # the caller stopped, Ctrl-C, or an error of every request: raised again
            self.backend.stop()
            pool.stop()
            wait(pending | pool.unfinished())  # Ctrl-C may have come before a future was added
            raise
        pool.stop()

    def _first(
        self, waiting: Sequence[Conversation]
    ) -> tuple[list[tuple[Conversation, Outcome]], Sequence[Conversation]]:
        """Send one request alone; a second one if the endpoint refuses only the first."""
        outcomes: list[tuple[Conversation, Outcome]] = []
        for question in waiting[:2]:
            outcomes += self._answer_batch([question], first=True)
            outcome = outcomes[-1][1]
            if not outcome.refused:
                break
        if outcomes and (outcome.unreachable or (outcome.refused and len(outcomes) in (2, len(waiting)))):
            raise UserError(f"parent: '{self.model}' at '{self.backend.source}' {outcome.why}")
        return outcomes, waiting[len(outcomes) :]

    def _answer_batch(
        self, questions: Sequence[Conversation], *, first: bool = False
    ) -> list[tuple[Conversation, Outcome]]:
        """Send, parse, and retry once what could not be parsed."""
        outcomes: dict[Conversation, Outcome] = {}
        pending = {question: _messages(question) for question in questions}
        for is_retry in (False, True):
            replies = self.backend.replies(list(pending.values()), first=first and not is_retry)
            retries: dict[Conversation, list[Message]] = {}
            for question, reply in zip(list(pending), replies, strict=True):
                outcome, error = self._parse(reply, outcomes.get(question))
                outcomes[question] = outcome
                if outcome.answer is not None:
                    self.cache.put(self._key(question), outcome.answer, self.model)
                elif error is not None and isinstance(reply, ChatReply):
                    retries[question] = _retry(question, reply, parent_retry_message(error, self.reads))
            pending = retries
            if not pending:
                break
        return list(outcomes.items())

    def _parse(self, reply: ChatReply | Failure, before: Outcome | None) -> tuple[Outcome, str | None]:
        """The outcome, with the tokens of both attempts, and the error to send back to the parent."""
        tokens_in, tokens_out = (before.tokens_in, before.tokens_out) if before else (0, 0)
        if isinstance(reply, Failure):
            why = before.why if before else reply.why
            unreachable = before is None and not reply.refused
            return Outcome(None, why, reply.refused, unreachable, tokens_in, tokens_out), None
        tokens_in, tokens_out = tokens_in + reply.tokens_in, tokens_out + reply.tokens_out
        try:
            if reply.truncated:
                raise UnparsableReply(f"it was cut after {self.max_tokens} tokens (`parent.max_tokens`)")
            answer = parse_answer(reply.text, self.reads)
        except UnparsableReply as error:
            shown = f"{reply.text[:60]!r}"
            outcome = Outcome(None, f"its reply {shown}: {error}", tokens_in=tokens_in, tokens_out=tokens_out)
            return outcome, str(error)
        return Outcome(answer, tokens_in=tokens_in, tokens_out=tokens_out), None

    def _key(self, question: Conversation) -> str:
        parameters = {"temperature": 0, "max_tokens": self.max_tokens, "reads": self.reads}
        return answer_key(self.model, self.backend.source, _messages(question), parameters)


def _messages(question: Conversation) -> list[Message]:
    return [{"role": role, "content": content} for role, content in question]


def _retry(question: Conversation, reply: ChatReply, message: str) -> list[Message]:
    """At temperature 0 the same messages give the same reply, so the retry adds that reply and what is wrong with
    it."""
    return [
        *_messages(question),
        {"role": "assistant", "content": reply.text.strip() or "…"},
        {"role": "user", "content": message},
    ]


class EndpointParent:
    """Any OpenAI-compatible endpoint. The API key is read at the first request."""

    batch_size = 1

    def __init__(self, config: EndpointParentConfig) -> None:
        self._config = config
        self.source = base_url(config.url, "parent.url")
        self.workers = config.concurrency
        self._client: Client | None = None

    def check(self) -> None:
        """Check the key and the URL without a request."""
        if self._client is None:
            config = self._config
            self._client = Client(self.source, "parent", timeout_s=config.timeout_s, retries=config.retries)

    def stop(self) -> None:
        if self._client is not None:
            self._client.stop()

    def replies(self, conversations: Sequence[list[Message]], *, first: bool) -> list[ChatReply | Failure]:
        self.check()
        assert self._client is not None
        model, limit = self._config.model, self._config.max_tokens
        return [self._client.chat(model, c, max_tokens=limit, fail_fast=first) for c in conversations]


def build_parent(
    config: EndpointParentConfig | LocalParentConfig, *, reads: AnswerFormat, cache: AnswerCache, device: str = "auto"
) -> Parent:
    """A parent that has not loaded or sent anything yet. A local model is loaded on `device` at the first request."""
    backend: Any
    if isinstance(config, EndpointParentConfig):
        backend = EndpointParent(config)
    else:
        from vigneron.sources.local_model import LocalModel, weights_name

        backend = LocalModel(config.model, weights_name(config.model), config.max_tokens, device)
    return Parent(config.model, config.reads or reads, config.max_tokens, backend, cache)
