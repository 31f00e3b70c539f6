"""The package `verifiers`: loading its environments, and a client that asks Vigneron's model instead of an endpoint."""

import asyncio
import json
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from functools import cache, wraps
from typing import Any

from vigneron.errors import UserError
from vigneron.policy.message_forms import Message

INSTALL = "pip install 'vigneron[verifiers]'"
failures: ContextVar[list[str]] = ContextVar("failures of reward functions")


def load(env: str, args: Mapping[str, Any] | None = None) -> Any:
    """The environment, loaded once a process; samples share it, as in the package."""
    return _loaded(env, json.dumps(dict(args or {}), sort_keys=True))


@cache
def _loaded(env: str, args: str) -> Any:
    package = _package()
    try:
        environment = package.load_environment(env, **json.loads(args))
    except (ValueError, RuntimeError) as error:
        raise UserError(f"environment.options: verifiers cannot load '{env}': {error}") from error
    if environment.requires_group_rollouts:
        raise UserError(f"environment.options: '{env}' scores groups of samples together, which is not supported")
    for rubric in rubrics_of(environment):
        rubric.funcs = [_watched(function) for function in rubric.funcs]
    return environment


@cache
def _package() -> Any:
    """The package, kept from replacing the handlers of SIGINT and SIGTERM: a stopped run saves a checkpoint."""
    try:
        import verifiers
    except ImportError as error:
        raise UserError(f"environment: the package verifiers is not installed ({error}): {INSTALL}") from error
    try:
        module = sys.modules[verifiers.Environment.__module__]
    except AttributeError as error:
        version = getattr(verifiers, "__version__", "?")
        raise UserError(f"environment: verifiers {version} has no `load_environment`: {INSTALL}") from error
    module.signal = _NoHandlers()  # type: ignore[attr-defined]
    return verifiers


class _NoHandlers:
    """The module `signal`, but for setting handlers."""

    def signal(self, number: int, handler: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return getattr(signal, name)


@cache
def client_class() -> type:
    """A client of the package that asks Vigneron's model: a question goes out, an answer comes in."""
    _package()
    from verifiers.clients import Client
    from verifiers.errors import OverlongPromptError
    from verifiers.types import Response, ResponseMessage
    from verifiers.utils.message_utils import from_raw_message

    class WaitingClient(Client):
        def __init__(self) -> None:
            super().__init__(None)
            self.questions: asyncio.Queue[list[Any]] = asyncio.Queue()
            self.answers: asyncio.Queue[Message | None] = asyncio.Queue()

        async def get_response(self, prompt: Any, model: str, sampling_args: Any, tools: Any = None, **_: Any) -> Any:
            self.questions.put_nowait(list(prompt))
            answer = await self.answers.get()
            if answer is None:
                raise OverlongPromptError("the conversation was cut")
            fields = from_raw_message(dict(answer)).model_dump(exclude_none=True)
            reason = "tool_calls" if fields.get("tool_calls") else "stop"
            message = ResponseMessage(**fields, finish_reason=reason, is_truncated=False)
            return Response(id="", created=0, model=model, message=message)

        async def _unused(self, *_: Any) -> None: ...

        setup_client = to_native_tool = to_native_prompt = get_native_response = close = _unused
        raise_from_native_response = from_native_response = _unused

    return WaitingClient


def rubrics_of(environment: Any) -> list[Any]:
    """The rubrics of an environment, those of groups too."""
    every, rubrics = list[Any](), [environment.rubric]
    for rubric in rubrics:
        every.append(rubric)
        rubrics += getattr(rubric, "rubrics", [])
        rubrics += [inner.rubric for inner in getattr(rubric, "env_map", {}).values()]
    return every


def _watched(function: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    """The reward function, noting what it raises: the package logs it and counts 0."""

    @wraps(function)
    async def watched(*given: Any, **named: Any) -> Any:
        try:
            value = function(*given, **named)
            return await value if isinstance(value, Awaitable) else value
        except Exception as error:
            failures.get([]).append(f"the reward function {function.__name__} raised {error!r}")
            raise

    return watched


def tool_schema_of(tool: Any) -> dict[str, Any]:
    return {"type": "function", "function": tool.model_dump(include={"name", "description", "parameters"})}
