"""A judge behind any OpenAI-compatible endpoint, called from a pool of threads that live as long as the judge."""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, wait
from contextlib import suppress
from dataclasses import replace
from threading import Lock
from typing import Any, TypeVar

from vigneron.config.judges import EndpointJudgeConfig
from vigneron.errors import UserError
from vigneron.sources.batch_judge import GREEDY, BatchJudge, JudgePrompts, TextRequest
from vigneron.sources.client import ChatReply, Client, Failure, Message, base_url
from vigneron.sources.judge_client import JudgeCall, JudgeClient, JudgeReply, JudgeRequest
from vigneron.sources.parents import Conversation
from vigneron.sources.reply_parsing import SCORE_SCHEMA, digit_probabilities
from vigneron.sources.verdict import Verdict
from vigneron.threads import DaemonPool

NOT_SENT = "not sent: the judge was stopped"
PREFLIGHT = [{"role": "user", "content": 'Reply with {"reasoning": "", "score": 1, "confidence": 1}'}]
PREFLIGHT_TOKENS = 16
PREFLIGHT_DIGIT = [{"role": "user", "content": "Reply with the number 5 and nothing else."}]
# A space, and a number of two digits.
DIGIT_TOKENS = 4
# The most that OpenAI and vLLM return.
TOP_LOGPROBS = 20

Input = TypeVar("Input")
Result = TypeVar("Result")


class EndpointBackend:
    """The API key is read at the first request."""

    batch_size = 1

    def __init__(self, config: EndpointJudgeConfig, where: str) -> None:
        self.source = base_url(config.url, f"{where}.url")
        self.notice: str | None = None
        self._config, self._where = config, where
        self._logprobs, self._digits = config.confidence == "logprob", config.reads == "digits"
        self._structured = True
        self._client: Client | None = None
        self._connecting = Lock()

    def check(self) -> list[ChatReply]:
        if self._digits:
            return self._check_digits()
        call = JudgeCall(JudgeRequest((), "score"), PREFLIGHT)
        reply = self._reply(call, max_tokens=min(PREFLIGHT_TOKENS, self._config.max_tokens), fail_fast=True)
        if isinstance(reply, Failure):
            raise UserError(f"{self._where}: '{self._config.model}' at '{self.source}' {reply.why}")
        if self._logprobs and not reply.token_logprobs:
            raise UserError(
                f"{self._where}.confidence: '{self._config.model}' at '{self.source}' returns no log-probs "
                "(choose `verbal` or `agreement`)"
            )
        return [reply]

    def _check_digits(self) -> list[ChatReply]:
        """Whether a number comes with the likeliest tokens. A number outside of 1 to 10 would not matter here."""
        reply = self._digits_reply(PREFLIGHT_DIGIT, fail_fast=True)
        if isinstance(reply, Failure):
            raise UserError(f"{self._where}: '{self._config.model}' at '{self.source}' {reply.why}")
        if not reply.top_logprobs:
            raise UserError(
                f"{self._where}.reads: '{self._config.model}' at '{self.source}' returns no log-probs of its likeliest "
                "tokens (`top_logprobs`), which `reads: digits` needs: set `reads: json`"
            )
        return [reply]

    def replies(self, calls: Sequence[JudgeCall]) -> list[ChatReply | Failure]:
        return [
            self._digit_probabilities(call)
            if call.request.reply_format == "digits"
            else self._reply(call, max_tokens=self._config.max_tokens)
            for call in calls
        ]

    def _digit_probabilities(self, call: JudgeCall) -> ChatReply | Failure:
        """P(1) … P(10) as the reply's text; the judge's own text where it begins with no digit, which is then requested
        once more. A reply without log-probs is missing."""
        reply = self._digits_reply(call.messages)
        if isinstance(reply, Failure) or reply.refusal:
            return reply
        if not reply.top_logprobs:
            return Failure("its reply came without log-probs of its likeliest tokens")
        probabilities = digit_probabilities(reply.top_logprobs, [token for token, _ in reply.token_logprobs])
        return replace(reply, text=json.dumps(probabilities) if any(probabilities) else reply.text, truncated=False)

    def _digits_reply(self, messages: Sequence[Message], **options: Any) -> ChatReply | Failure:
        chat = self._connected().chat
        return chat(self._config.model, messages, max_tokens=DIGIT_TOKENS, top_logprobs=TOP_LOGPROBS, **options)

    def stop(self) -> None:
        if self._client is not None:
            self._client.stop()

    def _reply(self, call: JudgeCall, **options: Any) -> ChatReply | Failure:
        """With structured output, unless the endpoint has refused that before and answered without."""
        is_score = call.request.reply_format == "score"
        options |= {"temperature": call.request.temperature, "logprobs": self._logprobs and is_score}
        chat, model = self._connected().chat, self._config.model
        if not (self._structured and is_score):
            return chat(model, call.messages, **options)
        reply = chat(model, call.messages, response_format=SCORE_SCHEMA, **options)
        if not isinstance(reply, Failure) or not reply.refused:
            return reply
        plain = chat(model, call.messages, **options)
        if isinstance(plain, ChatReply):
            self._structured = False
            self.notice = (
                f"'{model}' at '{self.source}' refuses structured output: its replies are parsed as plain JSON"
            )
        return plain

    def _connected(self) -> Client:
        with self._connecting:
            if self._client is None:
                timeout_s, retries = self._config.timeout_s, self._config.retries
                self._client = Client(self.source, self._where, timeout_s=timeout_s, retries=retries)
            return self._client


class SharedJudgeClient(JudgeClient):
    """For several threads: a request that is already in flight in one thread is awaited by the others."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._in_flight: dict[str, Future[JudgeReply]] = {}
        self._lock = Lock()

    def send(self, requests: Sequence[JudgeRequest]) -> list[JudgeReply]:
        return [self._send_once(request) for request in requests]

    def _send_once(self, request: JudgeRequest) -> JudgeReply:
        """No deadlock: a waiting thread waits for one that is running."""
        key = self.key(request)
        with self._lock:
            other = self._in_flight.get(key)
            if other is None:
                own = self._in_flight[key] = Future()
        if other is not None:
            return replace(other.result(), tokens_in=0, tokens_out=0)
        try:
            (reply,) = super().send([request])
            own.set_result(reply)
            return reply
        except BaseException as error:  # raised here and in the threads that wait for the same request
            own.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._in_flight[key]


class EndpointJudge(BatchJudge):
    """One thread pool for all callers; one thread computes a verdict, from critique to score."""

    overlaps = True

    def __init__(self, name: str, client: SharedJudgeClient, concurrency: int) -> None:
        super().__init__(name, client)
        self._pool = DaemonPool(concurrency, "judge")

    def verdicts(self, prompts: Sequence[JudgePrompts]) -> list[Verdict]:
        return self._map(lambda each: self._verdicts([each])[0], prompts, Verdict.missing(NOT_SENT))

    def complete(self, conversations: Sequence[Conversation], how: TextRequest = GREEDY) -> list[str | Failure]:
        return self._map(lambda each: self._complete([each], how)[0], conversations, Failure(NOT_SENT))

    def stop(self) -> None:
        """Requests in flight finish and are cached, unless the process ends first; the rest is not sent and missing."""
        super().stop()
        self._pool.stop()

    def _map(self, function: Callable[[Input], Result], inputs: Sequence[Input], default: Result) -> list[Result]:
        """In the pool; `default` where it was stopped. An error or Ctrl-C waits for requests in flight, whose replies
        are cached; a second Ctrl-C does not."""
        futures: list[Future[Result]] = []
        try:
            with suppress(RuntimeError):  # a stopped pool takes no more work
                for each in inputs:
                    futures.append(self._pool.submit(function, each))
            results = [_result(future, default) for future in futures]
            return results + [default] * (len(inputs) - len(results))
        except BaseException:  # the run ends: a refused key, Ctrl-C
            self.stop()
            wait(futures)
            raise
        finally:
            for future in futures:
                future.cancel()


def _result(future: Future[Result], default: Result) -> Result:
    try:
        return future.result()
    except CancelledError:
        return default
