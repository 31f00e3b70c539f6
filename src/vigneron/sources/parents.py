"""Parents: who answers the prompts. Each question is asked once, greedily, and its answer kept.

An endpoint is asked by several threads; a local model answers batch by batch through our own engine. The first question
goes alone: what is wrong with the parent shows there, before anything else is loaded or paid for.
"""

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Protocol

from vigneron.config import EndpointParentConfig, LocalParentConfig
from vigneron.errors import UserError
from vigneron.sources.answer_cache import AnswerCache, answer_key
from vigneron.sources.client import Client, Failure, Message, Reply, base_url
from vigneron.sources.reading import Reads, Unreadable, complaint, read_answer
from vigneron.threads import DaemonPool

Conversation = tuple[tuple[str, str], ...]
"""Roles and contents: a question as something that can be compared."""


@dataclass(frozen=True)
class Outcome:
    """An answer, or why there is none."""

    answer: str | None
    why: str | None = None
    refused: bool = False
    unreachable: bool = False
    tokens_in: int = 0
    tokens_out: int = 0


NOT_ASKED = Outcome(None, "not asked: too many others got no answer")


@dataclass(frozen=True)
class Answers:
    """In the order of the questions."""

    outcomes: list[Outcome]
    asked: int
    """Questions that were asked now; the same one is asked once."""
    cached: int

    @property
    def missing(self) -> int:
        return sum(outcome.answer is None for outcome in self.outcomes)

    @property
    def tokens(self) -> tuple[int, int]:
        """In and out, as far as the endpoint says."""
        own = {id(outcome): outcome for outcome in self.outcomes}.values()
        return sum(o.tokens_in for o in own), sum(o.tokens_out for o in own)


class Backend(Protocol):
    """What replies. `source` identifies it, `batch` conversations go together, `workers` batches at a time."""

    @property
    def source(self) -> str: ...
    @property
    def batch(self) -> int: ...
    @property
    def workers(self) -> int: ...
    def check(self) -> None: ...
    def stop(self) -> None: ...
    def replies(self, conversations: Sequence[list[Message]], *, first: bool) -> list[Reply | Failure]: ...


def conversation(instruction: str | None, shown: str | Sequence[Message]) -> Conversation:
    """The instruction is the system's message, what is shown the user's; or a conversation as it is."""
    said = [("user", shown)] if isinstance(shown, str) else [(m["role"], m["content"]) for m in shown]
    return tuple([("system", instruction), *said] if instruction else said)


@dataclass
class Parent:
    model: str
    reads: Reads
    max_tokens: int
    backend: Backend
    cache: AnswerCache = field(repr=False)

    def cached(self, questions: Sequence[Conversation]) -> dict[Conversation, Outcome]:
        """What needs not be asked."""
        found = {question: self.cache.get(self._key(question)) for question in dict.fromkeys(questions)}
        return {question: Outcome(answer) for question, answer in found.items() if answer is not None}

    def answer(
        self,
        questions: Sequence[Conversation],
        *,
        allowed_missing: int | None = None,
        progress: Callable[[int, int], None] = lambda done, of: None,
    ) -> Answers:
        """Every answer is kept as it arrives. With more than `allowed_missing` failures no more is asked."""
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
        return Answers([known.get(q, NOT_ASKED) for q in questions], asked=len(known) - cached, cached=cached)

    def _outcomes(self, waiting: Sequence[Conversation]) -> Generator[tuple[Conversation, Outcome], None, None]:
        """As they come. However the caller leaves, what is under way comes to its end and is kept; only Ctrl-C while it
        does ends it."""
        first, rest = self._first(waiting)
        yield from first
        size = self.backend.batch
        batches = [rest[i : i + size] for i in range(0, len(rest), size)]
        pool = DaemonPool(self.backend.workers, "parent")
        pending: set[Future[list[tuple[Conversation, Outcome]]]] = set()
        try:
            for batch in batches:
                pending.add(pool.submit(self._settle, batch))
            while pending:
                finished, pending = wait(pending, return_when=FIRST_COMPLETED)
                for future in finished:
                    yield from future.result()
        except BaseException:  # the caller stops, Ctrl-C, or an error that no question is spared: raised on
            self.backend.stop()
            pool.stop()
            wait(pending)
            raise
        pool.stop()

    def _first(
        self, waiting: Sequence[Conversation]
    ) -> tuple[list[tuple[Conversation, Outcome]], Sequence[Conversation]]:
        """One question alone; another one, should the endpoint refuse just that one."""
        settled: list[tuple[Conversation, Outcome]] = []
        for question in waiting[:2]:
            settled += self._settle([question], first=True)
            outcome = settled[-1][1]
            if not outcome.refused:
                break
        if settled and (outcome.unreachable or (outcome.refused and len(settled) in (2, len(waiting)))):
            raise UserError(f"parent: '{self.model}' at '{self.backend.source}' {outcome.why}")
        return settled, waiting[len(settled) :]

    def _settle(self, questions: Sequence[Conversation], *, first: bool = False) -> list[tuple[Conversation, Outcome]]:
        """Ask, read, and ask once more what could not be read."""
        outcomes: dict[Conversation, Outcome] = {}
        asked = {question: _messages(question) for question in questions}
        for again in (False, True):
            replies = self.backend.replies(list(asked.values()), first=first and not again)
            unread: dict[Conversation, list[Message]] = {}
            for question, reply in zip(list(asked), replies, strict=True):
                outcome, wrong = self._read(reply, outcomes.get(question))
                outcomes[question] = outcome
                if outcome.answer is not None:
                    self.cache.put(self._key(question), outcome.answer, self.model)
                elif wrong is not None and isinstance(reply, Reply):
                    unread[question] = _asked_again(question, reply, complaint(wrong, self.reads))
            asked = unread
            if not asked:
                break
        return list(outcomes.items())

    def _read(self, reply: Reply | Failure, before: Outcome | None) -> tuple[Outcome, str | None]:
        """The outcome, with the tokens of both attempts, and what to tell the parent."""
        tokens_in, tokens_out = (before.tokens_in, before.tokens_out) if before else (0, 0)
        if isinstance(reply, Failure):
            why = before.why if before else reply.why
            unreachable = before is None and not reply.refused
            return Outcome(None, why, reply.refused, unreachable, tokens_in, tokens_out), None
        tokens_in, tokens_out = tokens_in + reply.tokens_in, tokens_out + reply.tokens_out
        try:
            if reply.cut:
                raise Unreadable(f"it was cut after {self.max_tokens} tokens (`parent.max_tokens`)")
            answer = read_answer(reply.text, self.reads)
        except Unreadable as wrong:
            shown = f"{reply.text[:60]!r}"
            outcome = Outcome(None, f"its reply {shown}: {wrong}", tokens_in=tokens_in, tokens_out=tokens_out)
            return outcome, str(wrong)
        return Outcome(answer, tokens_in=tokens_in, tokens_out=tokens_out), None

    def _key(self, question: Conversation) -> str:
        parameters = {"temperature": 0, "max_tokens": self.max_tokens, "reads": self.reads}
        return answer_key(self.model, self.backend.source, _messages(question), parameters)


def _messages(question: Conversation) -> list[Message]:
    return [{"role": role, "content": content} for role, content in question]


def _asked_again(question: Conversation, reply: Reply, told: str) -> list[Message]:
    """At temperature 0 the same question has the same answer: so its reply goes with it, and what was wrong."""
    return [
        *_messages(question),
        {"role": "assistant", "content": reply.text.strip() or "…"},
        {"role": "user", "content": told},
    ]


class Endpoint:
    """Any OpenAI-compatible endpoint. Made without a key; the key is looked for when the first question is asked."""

    batch = 1

    def __init__(self, config: EndpointParentConfig) -> None:
        self._config = config
        self.source = base_url(config.url, "parent.url")
        self.workers = config.concurrency
        self._client: Client | None = None

    def check(self) -> None:
        """What can be wrong without a question asked."""
        if self._client is None:
            config = self._config
            self._client = Client(self.source, "parent", timeout_s=config.timeout_s, retries=config.retries)

    def stop(self) -> None:
        if self._client is not None:
            self._client.stop()

    def replies(self, conversations: Sequence[list[Message]], *, first: bool) -> list[Reply | Failure]:
        self.check()
        assert self._client is not None
        model, limit = self._config.model, self._config.max_tokens
        return [self._client.chat(model, c, max_tokens=limit, impatient=first) for c in conversations]


def build_parent(
    config: EndpointParentConfig | LocalParentConfig, *, reads: Reads, cache: AnswerCache, device: str = "auto"
) -> Parent:
    """Loads and asks nothing yet. A local model is loaded, on `device`, when the first question is asked."""
    backend: Any
    if isinstance(config, EndpointParentConfig):
        backend = Endpoint(config)
    else:
        from vigneron.sources.local_model import LocalModel, weights_name

        backend = LocalModel(config.model, weights_name(config.model), config.max_tokens, device)
    return Parent(config.model, config.reads or reads, config.max_tokens, backend, cache)
