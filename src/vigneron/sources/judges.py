"""Judges: models that score an answer for a rubric item, after writing a critique where the item has a critique
prompt."""

import re
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, Protocol

from vigneron.config.judges import EndpointJudgeConfig, LocalJudgeConfig, PythonJudgeConfig
from vigneron.errors import UserError
from vigneron.sources.answer_cache import AnswerCache
from vigneron.sources.batch_judge import BatchJudge, JudgePrompts, TextRequest
from vigneron.sources.client import ChatReply, Failure
from vigneron.sources.judge_client import JudgeBackend, JudgeCall, JudgeClient, JudgeSettings
from vigneron.sources.parents import Conversation
from vigneron.sources.verdict import Verdict
from vigneron.user_code import python_function

__all__ = ["Conversation", "Judge", "JudgePrompts", "TextRequest", "build_judge"]


class Judge(Protocol):
    """`verdicts` may be called from several threads."""

    @property
    def name(self) -> str:
        """Model and source. Recorded with scores."""
        ...

    @property
    def overlaps(self) -> bool:
        """Whether sampling can continue while it scores."""
        ...

    @property
    def score_format(self) -> Literal["json", "yes_no", "digits"]:
        """The reply that a score prompt must ask for."""
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
    def verdicts(self, prompts: Sequence[JudgePrompts]) -> list[Verdict]: ...
    def complete(self, conversations: Sequence[Conversation], how: TextRequest = ...) -> list[str | Failure]: ...
    def stop(self) -> None: ...


class PythonBackend:
    """A user's function. An exception in it ends the run, unlike a failure of an endpoint."""

    batch_size = 1
    notice: str | None = None

    def __init__(self, path: str, where: str) -> None:
        self.source, self._where = path, f"{where}.function"
        self._function = python_function(path, self._where)

    def check(self) -> list[ChatReply]:
        return []

    def stop(self) -> None: ...

    def replies(self, calls: Sequence[JudgeCall]) -> list[ChatReply | Failure]:
        return [ChatReply(self._reply(call)) for call in calls]

    def _reply(self, call: JudgeCall) -> str:
        try:
            reply = self._function([dict(message) for message in call.messages])
        except UserError:
            raise
        except Exception as error:  # user code: name it, keep the cause for --debug
            at = traceback.extract_tb(error.__traceback__)[-1]
            what = f"{type(error).__name__}: {error} ({Path(at.filename).name}, line {at.lineno})"
            raise UserError(f"{self._where}: '{self.source}' raised {what}") from error
        if not isinstance(reply, str):
            raise UserError(f"{self._where}: '{self.source}' returned {reply!r:.60}, not a string")
        return reply


def build_judge(
    config: EndpointJudgeConfig | LocalJudgeConfig | PythonJudgeConfig,
    *,
    cache: AnswerCache,
    device: str = "auto",
    where: str = "reward.judge",
    local_backend: Callable[[LocalJudgeConfig, str, str], JudgeBackend] | None = None,
) -> Judge:
    """A judge that has not loaded or sent anything yet.

    `where` is the config key that errors name. `local_backend` makes the backend of a local judge that runs outside of
    this process. Replies of a Python function are not cached: the function may change.
    """
    if isinstance(config, PythonJudgeConfig):
        settings = JudgeSettings(config.function, where)
        client = JudgeClient(settings, PythonBackend(config.function, where), None)
        return BatchJudge(f"python:{config.function}", client)
    settings = JudgeSettings(
        config.model,
        where,
        config.confidence,
        config.samples,
        config.temperature,
        config.max_tokens,
        "score" if config.reads == "json" else config.reads,
    )
    if isinstance(config, EndpointJudgeConfig):
        from vigneron.sources.endpoint_judge import EndpointBackend, EndpointJudge, SharedJudgeClient

        endpoint = EndpointBackend(config, where)
        shared = SharedJudgeClient(settings, endpoint, cache)
        return EndpointJudge(f"{config.model}@{endpoint.source}", shared, config.concurrency)
    from vigneron.sources.local_judge import LocalBackend
    from vigneron.sources.local_model import weights_name

    source = weights_name(config.model, where)
    local: JudgeBackend
    if local_backend is not None:
        local = local_backend(config, source, where)
    else:
        local = LocalBackend(config, source, device, where)
    shown = re.sub(r"[0-9a-f]{40,}", lambda full: full[0][:12], source)
    return BatchJudge(f"{config.model}@{shown}", JudgeClient(settings, local, cache))
