"""A judge behind any OpenAI-compatible endpoint: asked by several threads, which live as long as the judge."""

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, wait
from contextlib import suppress
from dataclasses import replace
from threading import Lock
from typing import Any, TypeVar

from vigneron.config.judges import EndpointJudgeConfig
from vigneron.errors import UserError
from vigneron.sources.client import Client, Failure, Reply, base_url
from vigneron.sources.judge_asking import Asked, AskingJudge
from vigneron.sources.judge_questions import Answering, Question, Told, Turn
from vigneron.sources.judge_reading import SCORE_FORMAT
from vigneron.sources.parents import Conversation
from vigneron.sources.verdict import Verdict
from vigneron.threads import DaemonPool

NOT_ASKED = "not asked: the judge was stopped"
GREETING = [{"role": "user", "content": 'Reply with {"reasoning": "", "score": 1, "confidence": 1}'}]
GREETING_TOKENS = 16

Found = TypeVar("Found")
Given = TypeVar("Given")


class EndpointVoice:
    """Made without a key; the key is looked for at the first question."""

    at_once = 1

    def __init__(self, config: EndpointJudgeConfig, where: str) -> None:
        self.source = base_url(config.url, f"{where}.url")
        self.notice: str | None = None
        self._config, self._where = config, where
        self._logprobs = config.confidence == "logprob"
        self._structured = True
        self._client: Client | None = None
        self._making = Lock()

    def check(self) -> list[Reply]:
        turn = Turn(Question((), "score"), GREETING)
        reply = self._reply(turn, max_tokens=min(GREETING_TOKENS, self._config.max_tokens), impatient=True)
        if isinstance(reply, Failure):
            raise UserError(f"{self._where}: '{self._config.model}' at '{self.source}' {reply.why}")
        if self._logprobs and not reply.pieces:
            raise UserError(
                f"{self._where}.confidence: '{self._config.model}' at '{self.source}' returns no log-probs "
                "(choose `verbal` or `agreement`)"
            )
        return [reply]

    def replies(self, turns: Sequence[Turn]) -> list[Reply | Failure]:
        return [self._reply(turn, max_tokens=self._config.max_tokens) for turn in turns]

    def stop(self) -> None:
        if self._client is not None:
            self._client.stop()

    def _reply(self, turn: Turn, **how: Any) -> Reply | Failure:
        """Structured where the endpoint takes the request for it. One that refuses it and then answers without is not
        asked for it again."""
        scores = turn.question.reads == "score"
        how |= {"temperature": turn.question.temperature, "logprobs": self._logprobs and scores}
        chat, model = self._connected().chat, self._config.model
        if not (self._structured and scores):
            return chat(model, turn.messages, **how)
        reply = chat(model, turn.messages, response_format=SCORE_FORMAT, **how)
        if not isinstance(reply, Failure) or not reply.refused:
            return reply
        plain = chat(model, turn.messages, **how)
        if isinstance(plain, Reply):
            self._structured = False
            self.notice = f"'{model}' at '{self.source}' refuses structured output: its replies are read as plain JSON"
        return plain

    def _connected(self) -> Client:
        with self._making:
            if self._client is None:
                timeout_s, retries = self._config.timeout_s, self._config.retries
                self._client = Client(self.source, self._where, timeout_s=timeout_s, retries=retries)
            return self._client


class SharedAnswering(Answering):
    """For several threads: what one of them is asking already, another one waits for."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._under_way: dict[str, Future[Told]] = {}
        self._looking = Lock()

    def told(self, questions: Sequence[Question]) -> list[Told]:
        return [self._once(question) for question in questions]

    def _once(self, question: Question) -> Told:
        """Who waits holds a thread, and waits for one that is running: it cannot wait for ever."""
        key = self.key(question)
        with self._looking:
            other = self._under_way.get(key)
            if other is None:
                own = self._under_way[key] = Future()
        if other is not None:
            return replace(other.result(), tokens_in=0, tokens_out=0)
        try:
            (told,) = super().told([question])
            own.set_result(told)
            return told
        except BaseException as error:  # whoever waits for the same question is told, and it is raised on
            own.set_exception(error)
            raise
        finally:
            with self._looking:
                del self._under_way[key]


class EndpointJudge(AskingJudge):
    """One pool of threads for all callers; a judgement is the work of one of them, from its critique to its score."""

    waits = True

    def __init__(self, name: str, answering: SharedAnswering, concurrency: int) -> None:
        super().__init__(name, answering)
        self._pool = DaemonPool(concurrency, "judge")

    def verdicts(self, asked: Sequence[Asked]) -> list[Verdict]:
        return self._spread(lambda each: self._judged([each])[0], asked, Verdict.missing(NOT_ASKED))

    def texts(self, conversations: Sequence[Conversation]) -> list[str | Failure]:
        return self._spread(lambda each: self._replied([each])[0], conversations, Failure(NOT_ASKED))

    def stop(self) -> None:
        """What is under way comes to its end and is kept, unless the process ends first; the rest is not asked, and is
        missing."""
        super().stop()
        self._pool.stop()

    def _spread(self, work: Callable[[Given], Found], given: Sequence[Given], otherwise: Found) -> list[Found]:
        """At Ctrl-C what is under way comes to its end and is kept; a second one does not wait for it."""
        futures: list[Future[Found]] = []
        try:
            with suppress(RuntimeError):  # the pool takes nothing more once it is stopped
                for each in given:
                    futures.append(self._pool.submit(work, each))
            found = [_result(future, otherwise) for future in futures]
            return found + [otherwise] * (len(given) - len(found))
        except KeyboardInterrupt:
            self.stop()
            wait(futures)
            raise
        finally:
            for future in futures:
                future.cancel()


def _result(future: Future[Found], otherwise: Found) -> Found:
    try:
        return future.result()
    except CancelledError:
        return otherwise
