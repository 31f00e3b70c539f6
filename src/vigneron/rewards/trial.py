"""Call a user's own reward and checker on a few rows before anything is loaded, so that a mistake shows in seconds.

Only functions that the recipe names are called: no judge, no parent and no model is asked.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from vigneron.config import Config, GameConfig, PythonRewardConfig
from vigneron.config.custom import is_user_path
from vigneron.data.prompts import Row, columns_of, completion_text
from vigneron.errors import UserError, nearest
from vigneron.rewards.user_reward import RewardFailed, checked_rewards, named_errors, started
from vigneron.user_code import python_function

ROWS = 2
"""Rows of each part that functions are called on."""
PLACEHOLDER = "A completion."
"""Stands for a model's text where a row has no answer."""
EMPTY = "which stops the run as soon as the model writes nothing"


def try_user_functions(config: Config, train: Sequence[Row], held_out: Sequence[Row]) -> list[str]:
    """Raise for a function that fails on the data's rows. Returns notices about functions that fail on empty texts.

    With a rollout or a game of the user's own, functions get columns that are not known here: they are not called.
    """
    if config.rollout is not None or isinstance(config.environment, GameConfig) or config.method.trains != "policy":
        return []
    notices: dict[str, None] = {}
    for key, what, path in user_functions(config):
        function = python_function(path, key)
        for rows, part in _scored_parts(config, train, held_out):
            name = f"{what} '{getattr(function, '__name__', path)}'"
            arguments = _arguments(config, rows)
            _check_signature(f"{key}: {name}", function, arguments, part)
            _call(name, function, arguments, rows, part)
            try:
                _call(name, function, {**arguments, **_empty(config, rows)}, rows, part)
            except RewardFailed as error:
                notices.setdefault(f"{error}: this was for an empty completion, {EMPTY}")
    return list(notices)


def user_functions(config: Config) -> Iterator[tuple[str, str, str]]:
    """The config key, what it is, and the import path of each reward and checker of the user's own."""
    several = config.reward.kind == "combined"
    for number, part in enumerate(config.reward.parts):
        if isinstance(part, PythonRewardConfig):
            yield f"reward.rewards[{number}].function" if several else "reward.function", "reward", part.function
    if config.data.checker is not None and is_user_path(config.data.checker):
        yield "data.checker", "checker", config.data.checker


def _scored_parts(config: Config, train: Sequence[Row], held_out: Sequence[Row]) -> Iterator[tuple[list[Row], str]]:
    """Rows whose completions are scored: of training where they are sampled, and the held-out ones."""
    if config.method.reads == "prompts" and train:
        yield [train[at] for at in range(min(ROWS, len(train)))], "the training data"
    if config.method.reads != "pairs" and held_out:
        yield [held_out[at] for at in range(min(ROWS, len(held_out)))], "the held-out data"


def _arguments(config: Config, rows: list[Row]) -> dict[str, Any]:
    """What a reward gets for these rows, with their own answers in place of completions."""
    texts = [PLACEHOLDER if row.get("answer") is None else completion_text(row["answer"]) for row in rows]
    columns: dict[str, Any] = {name: list(values) for name, values in columns_of(rows).items()}
    if config.parent is not None:
        columns.setdefault("answer", [PLACEHOLDER] * len(rows))
    if config.environment is not None:
        columns |= {"environment_reward": [0.0] * len(rows), "environment_rewards": [[0.0] for _ in rows]}
    return {**columns, "prompts": [row["prompt"] for row in rows], **_completions(config, rows, texts)}


def _completions(config: Config, rows: list[Row], texts: Sequence[str]) -> dict[str, Any]:
    plain = [isinstance(row["prompt"], str) and config.environment is None for row in rows]
    ids = (
        {} if config.reward.sees == "answer" else {"completion_ids": [list(range(len(text.split()))) for text in texts]}
    )
    return {
        "completions": [
            text if is_plain else [{"role": "assistant", "content": text}]
            for text, is_plain in zip(texts, plain, strict=True)
        ],
        "completion_truncated": [False] * len(rows),
        **({} if config.reward.sees == "answer" else ids),
    }


def _empty(config: Config, rows: list[Row]) -> dict[str, Any]:
    return _completions(config, rows, [""] * len(rows))


def _check_signature(name: str, function: Callable[..., Any], arguments: dict[str, Any], part: str) -> None:
    """Raise for a parameter that no column of the data fills, and for a column that the function does not take."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature
        return
    given = {*arguments, "log_extra", "log_metric"}
    of = f"{name}{_place(function)}"
    data = [column for column in arguments if column != "prompts" and not column.startswith("completion")]
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        if parameter.default is parameter.empty and parameter.name not in given:
            near = nearest(parameter.name, data)
            raise UserError(
                f"{of} needs a column '{parameter.name}', which {part} does not have"
                f"{f' (did you mean {near!r}?)' if near else ''}; its columns: {_listed(data)}: add it to the data, "
                "rename one with `data.columns`, or give the parameter a default"
            )
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        unknown = sorted(given - {parameter.name for parameter in parameters})
        if unknown:
            raise UserError(
                f"{of} has no parameter for {_listed(unknown)}: add `**columns` to its parameters, because every "
                "column of the data is passed to it"
            )


def _call(name: str, function: Callable[..., Any], arguments: dict[str, Any], rows: list[Row], part: str) -> None:
    logs = {"log_extra": lambda name, values: None, "log_metric": lambda name, value: None}

    def result() -> Any:
        begun = started(function(**arguments, **logs))
        return begun.result() if isinstance(begun, Future) else begun

    name = f"{name}{_place(function)}"
    try:
        values = checked_rewards(name, named_errors(name, result), len(rows))
    except RewardFailed as error:
        if isinstance(error.__cause__, KeyError):
            raise RewardFailed(f"{error}; the columns of {part}: {_listed(columns_of(rows))}") from error
        raise
    wrong = [value for value in values if value not in (0.0, 1.0, None)] if name.startswith("checker") else []
    if wrong:
        raise RewardFailed(f"{name} returned {wrong[0]:g}; expected 1, 0 or None")


def _place(function: Callable[..., Any]) -> str:
    """' (FILE, line N)' of the function, if it is known."""
    try:
        inner: Any = inspect.unwrap(function)
        code = getattr(inner, "__code__", None) or type(inner).__call__.__code__
    except (AttributeError, ValueError):
        return ""
    return f" ({Path(code.co_filename).name}, line {code.co_firstlineno})"


def _listed(names: Any) -> str:
    return ", ".join(f"'{name}'" for name in names)
