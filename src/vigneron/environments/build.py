"""Build the environments of a config."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from vigneron.config import EnvironmentOptions, GameConfig, PythonEnvironmentConfig, ToolsEnvironmentConfig
from vigneron.data.prompts import Row, as_messages, numbered_like
from vigneron.environments.calls import THREADS, raised
from vigneron.environments.game import game_class
from vigneron.environments.reply import Environment
from vigneron.environments.tools import MAX_CALLS, check_tools, tool_environment
from vigneron.errors import UserError
from vigneron.policy.chat import generation_prompts
from vigneron.user_code import check_call, check_method, python_function


@dataclass(frozen=True)
class Environments:
    """Makes an environment for each sample: `make(row, seed)`."""

    name: str
    """What errors call it."""
    make: Callable[[Row, int], Environment]
    options: EnvironmentOptions
    waits: bool = False
    """Whether replies are async."""
    at_once: bool = False
    """Whether `make` calls no user's code, so that it takes no time."""
    tools: list[dict[str, Any]] | None = None
    """The tools that the chat template writes into the prompt."""
    notices: tuple[str, ...] = ()
    end_tokens: tuple[str, ...] = ()
    """Tokens that end a turn with calls, beside the one that ends turns."""

    def end_ids(self, tokenizer: Any) -> list[int]:
        """The ids of those that the tokenizer has."""
        known = tokenizer.get_added_vocab()
        return [known[token] for token in self.end_tokens if token in known]

    def patience(self, max_new_tokens: int) -> int:
        """Tokens that other samples go on before a reply is waited for."""
        given = self.options.patience
        return given if given is not None else max_new_tokens if self.waits else 0

    def prepared(self, row: Row) -> Row:
        """The row with a conversation as its prompt, a text as a user's message, and with the tools."""
        tools = {} if self.tools is None else {"tools": self.tools}
        return numbered_like(row, {**row, "prompt": as_messages(row["prompt"]), **tools})


def build_environments(config: EnvironmentOptions | None, tokenizer: Any) -> Environments | None:
    """None without one, and for games, which have a rollout of their own."""
    if isinstance(config, ToolsEnvironmentConfig):
        return _of_tools(config, tokenizer)
    return _of_class(config) if isinstance(config, PythonEnvironmentConfig) else None


def _of_tools(config: ToolsEnvironmentConfig, tokenizer: Any) -> Environments:
    template = getattr(tokenizer, "chat_template", None)
    made = tool_environment(
        config.tools,
        template if isinstance(template, str) else None,
        timeout_s=config.timeout_s,
        max_result_chars=config.max_result_chars,
    )
    # Every call has its own limit; those of one object run after each other, and after it is made.
    patient = {"timeout_s": (MAX_CALLS + 2) * config.timeout_s}
    # Of more samples than threads, some would wait for a thread until that time is over.
    threads = any(not inspect.iscoroutinefunction(tool.function) for tool in made.tools.values())
    concurrency = {"concurrency": config.concurrency or (THREADS if threads else None)}
    tools = made.schemas if made.format.takes_tools else None
    made = replace(made, generation_prompts=generation_prompts(tokenizer, tools))
    return Environments(
        "environment.tools",
        made,
        config.model_copy(update=patient | concurrency),
        waits=True,
        at_once=True,
        tools=tools,
        notices=tuple(made.notices),
        end_tokens=tuple(made.format.end_tokens),
    )


def check_environment(config: EnvironmentOptions | None) -> None:
    """Import the user's classes and functions, and raise for those that cannot be called as they will be."""
    if isinstance(config, ToolsEnvironmentConfig):
        check_tools(config.tools)
    elif isinstance(config, GameConfig):
        game_class(config)
    elif isinstance(config, PythonEnvironmentConfig):
        _of_class(config)


def _of_class(config: PythonEnvironmentConfig) -> Environments:
    made = python_function(config.class_, "environment.class")
    called: Any = getattr(made, "reply", None) if inspect.isclass(made) else made
    name = f"environment.class: '{config.class_}'"
    if called is None:
        raise UserError(f"{name} has no method `reply(messages)`")
    if inspect.isclass(made):
        check_call(made, name, "Class(row, seed, **options)", None, 0, **config.options)
        check_method(made, "reply", name, "reply(messages)", [])
        _check_options(made, name, config.options)
    else:
        check_call(made, name, "reply(messages, row, seed, **options)", [], None, 0, **config.options)
    make: Callable[[Row, int], Environment] = partial(made, **config.options)
    if not inspect.isclass(made):
        make = partial(_FunctionEnvironment, made, config.options)
    return Environments(
        f"environment '{config.class_}'",
        make,
        config,
        waits=inspect.iscoroutinefunction(called),
        at_once=not inspect.isclass(made),
    )


def _check_options(made: type, name: str, options: dict[str, Any]) -> None:
    """Call the class's own `check_options(**options)`, if it has one that needs no object."""
    if not isinstance(inspect.getattr_static(made, "check_options", None), classmethod | staticmethod):
        return
    try:
        made.check_options(**options)  # type: ignore[attr-defined]
    except UserError:
        raise
    except Exception as error:  # user code
        raise UserError(f"{name} {raised(error)} in `check_options`") from error


class _FunctionEnvironment:
    """A function as the environment of a sample."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any], row: Row, seed: int) -> None:
        self._row, self._seed, self._options = row, seed, options
        self._function = function
        if inspect.iscoroutinefunction(function):
            self.reply = self._async_reply  # type: ignore[method-assign]

    def reply(self, messages: list[Any]) -> Any:
        return self._function(messages, self._row, self._seed, **self._options)

    async def _async_reply(self, messages: list[Any]) -> Any:
        return await self._function(messages, self._row, self._seed, **self._options)
