"""Judges: who scores an answer for an item of a rubric, with a critique before it where the item asks for one."""

import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, Protocol

from vigneron.config.judges import EndpointJudgeConfig, LocalJudgeConfig, PythonJudgeConfig
from vigneron.errors import UserError
from vigneron.sources.answer_cache import AnswerCache
from vigneron.sources.client import Failure, Reply
from vigneron.sources.judge_asking import Asked, AskingJudge
from vigneron.sources.judge_questions import Answering, Manner, Turn, Voice
from vigneron.sources.parents import Conversation
from vigneron.sources.verdict import Verdict

__all__ = ["Asked", "Conversation", "Judge", "build_judge"]


class Judge(Protocol):
    """`verdicts` may be called from several threads; with `waits`, it waits for somebody else meanwhile."""

    @property
    def name(self) -> str:
        """Model and place. Recorded with scores."""
        ...

    @property
    def waits(self) -> bool: ...
    @property
    def asks(self) -> Literal["json", "yes_no"]:
        """What a conversation for a score asks it to reply with."""
        ...

    @property
    def tokens(self) -> tuple[int, int]: ...
    @property
    def calls(self) -> int: ...
    @property
    def cached(self) -> int: ...
    @property
    def notice(self) -> str | None: ...
    def preflight(self) -> None: ...
    def verdicts(self, asked: Sequence[Asked]) -> list[Verdict]: ...
    def texts(self, conversations: Sequence[Conversation]) -> list[str | Failure]: ...
    def stop(self) -> None: ...


class PythonVoice:
    """A function of the user's. What it raises ends the run: it is no failure of an endpoint."""

    at_once = 1
    notice: str | None = None

    def __init__(self, path: str, where: str) -> None:
        from vigneron.user_code import python_function

        self.source, self._where = path, f"{where}.function"
        self._function = python_function(path, self._where)

    def check(self) -> list[Reply]:
        return []

    def stop(self) -> None: ...

    def replies(self, turns: Sequence[Turn]) -> list[Reply | Failure]:
        return [Reply(self._said(turn)) for turn in turns]

    def _said(self, turn: Turn) -> str:
        try:
            said = self._function([dict(message) for message in turn.messages])
        except UserError:
            raise
        except Exception as error:  # the edge to the user's own code: name it, keep the cause for --debug
            at = traceback.extract_tb(error.__traceback__)[-1]
            what = f"{type(error).__name__}: {error} ({Path(at.filename).name}, line {at.lineno})"
            raise UserError(f"{self._where}: '{self.source}' raised {what}") from error
        if not isinstance(said, str):
            raise UserError(f"{self._where}: '{self.source}' returned {said!r:.60}, not a text")
        return said


def build_judge(
    config: EndpointJudgeConfig | LocalJudgeConfig | PythonJudgeConfig,
    *,
    cache: AnswerCache,
    device: str = "auto",
    where: str = "reward.judge",
    voice: Callable[[LocalJudgeConfig, str, str], Voice] | None = None,
) -> Judge:
    """Loads and asks nothing yet. `where` is the config's key that errors name, `voice` makes a local judge's voice
    where that is not in this process.

    A function's replies are not kept: it may say something else tomorrow.
    """
    if isinstance(config, PythonJudgeConfig):
        own = PythonVoice(config.function, where)
        manner = Manner(config.function, where)
        return AskingJudge(f"python:{config.function}", Answering(manner, own, None))
    scores_by: Literal["score", "yes_no"] = "score"
    if isinstance(config, LocalJudgeConfig) and config.reads == "yes_no":
        scores_by = "yes_no"
    manner = Manner(
        config.model, where, config.confidence, config.samples, config.temperature, config.max_tokens, scores_by
    )
    if isinstance(config, EndpointJudgeConfig):
        from vigneron.sources.endpoint_judge import EndpointJudge, EndpointVoice, SharedAnswering

        asked = EndpointVoice(config, where)
        return EndpointJudge(
            f"{config.model}@{asked.source}", SharedAnswering(manner, asked, cache), config.concurrency
        )
    from vigneron.sources.local_judge import LocalVoice
    from vigneron.sources.local_model import weights_name

    source = weights_name(config.model, where)
    local: Voice = voice(config, source, where) if voice is not None else LocalVoice(config, source, device, where)
    return AskingJudge(f"{config.model}@{source}", Answering(manner, local, cache))
