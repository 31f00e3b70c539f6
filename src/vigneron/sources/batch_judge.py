"""A judge that runs in the calling thread. A verdict takes a critique and then a score (`rlmt-grape` 5b), or a score
alone.

A failure gives a missing verdict, never a score of 0.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import RLock
from typing import Literal

from vigneron.sources.client import Failure
from vigneron.sources.judge_client import JudgeClient, JudgeReply, JudgeRequest
from vigneron.sources.parents import Conversation
from vigneron.sources.reply_parsing import combine_scores
from vigneron.sources.verdict import Verdict


@dataclass(frozen=True)
class JudgePrompts:
    """The conversations of one verdict. `critique` None: score only. `score` takes the critique, "" if there is
    none."""

    critique: Conversation | None
    score: Callable[[str], Conversation]


@dataclass(frozen=True)
class TextRequest:
    """How plain text is requested: greedy at temperature 0. `sample` is the index among several replies to one
    conversation. `cut`: a reply that reached the length limit is used too, as a critique may be."""

    temperature: float = 0.0
    sample: int = 0
    cut: bool = False


GREEDY = TextRequest()


class BatchJudge:
    """Sends requests batch by batch: all critiques, then all scores."""

    overlaps = False

    def __init__(self, name: str, client: JudgeClient) -> None:
        self.name, self._client = name, client
        self._one_caller = RLock()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"

    @property
    def score_format(self) -> Literal["json", "yes_no", "digits"]:
        score_format = self._client.settings.score_format
        return "json" if score_format == "score" else score_format

    @property
    def tokens(self) -> tuple[int, int]:
        """Input and output tokens so far, where the backend reports them."""
        return self._client.tokens

    @property
    def calls(self) -> int:
        return self._client.calls

    @property
    def cached(self) -> int:
        """Requests so far that the cache answered."""
        return self._client.cached

    @property
    def notice(self) -> str | None:
        """A message for the user about how the backend is called."""
        return self._client.backend.notice

    def preflight(self) -> None:
        """Raise a `UserError` for a wrong key, address or model."""
        self._client.check()

    def verdicts(self, prompts: Sequence[JudgePrompts]) -> list[Verdict]:
        with self._one_caller:
            return self._verdicts(prompts)

    def complete(self, conversations: Sequence[Conversation], how: TextRequest = GREEDY) -> list[str | Failure]:
        """Plain text replies."""
        with self._one_caller:
            return self._complete(conversations, how)

    def stop(self) -> None:
        self._client.backend.stop()

    def _verdicts(self, prompts: Sequence[JudgePrompts]) -> list[Verdict]:
        requests = [JudgeRequest(each.critique, "critique") for each in prompts if each.critique]
        replies = iter(self._client.send(requests))
        critiques = [next(replies) if each.critique else JudgeReply("") for each in prompts]
        settings = self._client.settings
        agreement = settings.confidence == "agreement"
        samples, temperature = (settings.samples, settings.temperature) if agreement else (1, 0.0)
        requests = [
            JudgeRequest(each.score(critique.text.strip()), settings.score_format, temperature, sample)
            for each, critique in zip(prompts, critiques, strict=True)
            if critique.text is not None
            for sample in range(samples)
        ]
        scores = iter(self._client.send(requests))
        return [
            verdict_of(critique, [next(scores) for _ in range(samples)] if critique.text is not None else [])
            for critique in critiques
        ]

    def _complete(self, conversations: Sequence[Conversation], how: TextRequest) -> list[str | Failure]:
        form: Literal["critique", "text"] = "critique" if how.cut else "text"
        replies = self._client.send([JudgeRequest(each, form, how.temperature, how.sample) for each in conversations])
        return [Failure(reply.why or "") if reply.text is None else reply.text.strip() for reply in replies]


def verdict_of(critique: JudgeReply, replies: Sequence[JudgeReply]) -> Verdict:
    """The verdict from a critique and one or several score replies. Of several, at least two and at least half must be
    readable: agreement needs two."""
    tokens_in = critique.tokens_in + sum(reply.tokens_in for reply in replies)
    tokens_out = critique.tokens_out + sum(reply.tokens_out for reply in replies)
    if critique.text is None:
        return Verdict.missing(f"its critique: {critique.why}", tokens_in=tokens_in, tokens_out=tokens_out)
    text, of = critique.text.strip(), len(replies)
    scores = [reply.score for reply in replies if reply.score is not None]
    if 2 * len(scores) < of or len(scores) < min(2, of):
        why = next(reply.why or "" for reply in replies if reply.score is None)
        why = why if of == 1 else f"{of - len(scores)} of {of} replies failed: {why}"
        return Verdict.missing(why, critique=text, tokens_in=tokens_in, tokens_out=tokens_out)
    score = scores[0] if of == 1 else combine_scores(scores)
    return Verdict(score.score, score.confidence, score.reasoning, text, None, tokens_in, tokens_out)
