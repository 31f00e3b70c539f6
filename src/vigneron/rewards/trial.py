"""Call a user's own reward and checker on a few rows before anything is loaded, so that a mistake shows in seconds.

Only functions that the recipe or its rubric names are called: no judge, no parent and no model is asked. Commands have
refused a rubric with functions by now, unless code is allowed.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from vigneron.config import Config, GameConfig, PythonRewardConfig, RubricRewardConfig
from vigneron.config.custom import is_user_path
from vigneron.data.prompts import Row, columns_of, completion_text
from vigneron.errors import UserError, nearest
from vigneron.rewards.user_reward import RewardFailed, checked_rewards, named_errors, started
from vigneron.rubric.model import PythonItem, Rubric
from vigneron.rubric.read import read_rubric
from vigneron.rubric.rows import category_of
from vigneron.user_code import python_function

ROWS = 2
"""Rows of each part that functions are called on, or one row with a whole group of completions."""
PLACEHOLDER = "A completion."
"""Stands for a model's text where a row has no answer."""
LOGS: dict[str, Any] = {"log_extra": lambda name, values: None, "log_metric": lambda name, value: None}
NOT_OF_ITEMS = (*LOGS, "completion_ids", "completion_truncated")
"""What a reward gets and the function of a rubric's item does not."""
EMPTY = "which stops the run as soon as the model writes nothing"
MESSAGES = 'completions are lists of messages here, as in TRL: `completion[0]["content"]` is the text'
"""For prompts that are conversations: a comparison of a text with such a list is false, and raises nothing."""


def try_user_functions(config: Config, train: Sequence[Row], held_out: Sequence[Row]) -> list[str]:
    """Raise for a function that fails on the data's rows. Returns notices about functions that fail on empty texts, and
    about those that do not tell a row's answer from an empty text.

    With a rollout or a game of the user's own, functions get columns that are not known here: they are not called.
    """
    if config.rollout is not None or isinstance(config.environment, GameConfig) or config.method.trains != "policy":
        return []
    notices: dict[str, None] = {}
    for own in user_functions(config):
        function = python_function(own.path, own.key)
        name = f"{own.what} '{getattr(function, '__name__', own.path)}'"
        for rows, part in _scored_parts(config, own, train, held_out):
            given = {**_arguments(config, rows), **LOGS}
            empty = _completions(config, rows, [""] * len(rows))
            if own.rubric is not None:
                given, empty = ({k: v for k, v in each.items() if k not in NOT_OF_ITEMS} for each in (given, empty))
            _check_signature(f"{own.key}: {name}", function, given, part)
            scores = _call(name, function, given, rows, part)
            try:
                of_empty = _call(name, function, {**given, **empty}, rows, part)
            except RewardFailed as error:
                notices.setdefault(f"{error}: this was for an empty completion, {EMPTY}")
            else:
                if own.rubric is None and scores == of_empty and _reads_answers(function, rows):
                    notices.setdefault(_indifferent(f"{name}{_place(function)}", scores[0], given["completions"]))
    return list(notices)


@dataclass(frozen=True)
class UserFunction:
    key: str
    """The config key that names it, or the rubric's item."""
    what: str
    path: str
    rubric: Rubric | None = None
    category: str | None = None
    """Of a rubric's item: it scores the rows of this category."""


def user_functions(config: Config) -> Iterator[UserFunction]:
    """The rewards, checkers and functions of rubric items that are the user's own."""
    several = config.reward.kind == "combined"
    for number, part in enumerate(config.reward.parts):
        if isinstance(part, PythonRewardConfig):
            key = f"reward.rewards[{number}].function" if several else "reward.function"
            yield UserFunction(key, "reward", part.function)
    if config.data.checker is not None and is_user_path(config.data.checker):
        yield UserFunction("data.checker", "checker", config.data.checker)
    if isinstance(config.reward, RubricRewardConfig):
        rubric = read_rubric(config.reward.file)
        for name, category in rubric.categories.items():
            for item in category.items:
                if isinstance(item, PythonItem):
                    yield UserFunction(f"{name}.{item.name}", "function", item.function, rubric, name)


def _scored_parts(
    config: Config, own: UserFunction, train: Sequence[Row], held_out: Sequence[Row]
) -> Iterator[tuple[list[Row], str]]:
    """Rows whose completions are scored: of training where they are sampled, and the held-out ones where they are
    evaluated. A reward may compare the completions of a prompt, so a training row comes once for each of its group."""
    reads, another = config.method.reads, isinstance(config.reward, RubricRewardConfig) and config.reward.held_out_file
    parts = [("the training data", train if reads == "prompts" else ())]
    evaluates = config.eval_every > 0 and reads != "pairs" and not (own.rubric and another)
    parts += [("the held-out data", held_out if evaluates else ())]
    for part, rows in parts:
        scored = (
            row
            for number, row in enumerate(rows, start=1)
            if own.rubric is None or category_of(own.rubric, row, number, part) == own.category
        )
        size = config.group_size if rows is train else 1
        if first := list(islice(scored, ROWS if size == 1 else 1)):
            yield [row for row in first for _ in range(size)], part


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


def _check_signature(name: str, function: Callable[..., Any], arguments: dict[str, Any], part: str) -> None:
    """Raise for a parameter that no column of the data fills, and for a column that the function does not take."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature
        return
    of = f"{name}{_place(function)}"
    data = [name for name in arguments if name not in (*NOT_OF_ITEMS, "prompts", "completions")]
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        if parameter.default is parameter.empty and parameter.name not in arguments:
            near = nearest(parameter.name, data)
            raise UserError(
                f"{of} needs a column '{parameter.name}', which {part} does not have"
                f"{f' (did you mean {near!r}?)' if near else ''}; its columns: {_listed(data)}: add it to the data, "
                "rename one with `data.columns`, or give the parameter a default"
            )
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        unknown = sorted(arguments.keys() - {parameter.name for parameter in parameters})
        if unknown:
            raise UserError(
                f"{of} has no parameter for {_listed(unknown)}: add `**columns` to its parameters, because every "
                "column of the data is passed to it"
            )


def _reads_answers(function: Callable[..., Any], rows: list[Row]) -> bool:
    """Whether it has a parameter `answer`, and the rows have answers that are not empty."""
    try:
        named = "answer" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin without a signature
        return False
    return named and all(row.get("answer") is not None and completion_text(row["answer"]) for row in rows)


def _indifferent(name: str, score: float | None, completions: list[Any]) -> str:
    why = f": {MESSAGES}" if isinstance(completions[0], list) else ""
    return f"{name} gives {score} to the data's own answer and to an empty completion alike{why}"


def _call(
    name: str, function: Callable[..., Any], arguments: dict[str, Any], rows: list[Row], part: str
) -> list[float | None]:
    def result() -> Any:
        begun = started(function(**arguments))
        return begun.result() if isinstance(begun, Future) else begun

    name = f"{name}{_place(function)}"
    try:
        returned = named_errors(name, result)
    except RewardFailed as error:
        if isinstance(error.__cause__, KeyError):
            raise RewardFailed(f"{error}; the columns of {part}: {_listed(columns_of(rows))}") from error
        if isinstance(error.__cause__, TypeError | AttributeError) and isinstance(arguments["completions"][0], list):
            raise RewardFailed(f"{error}; {MESSAGES}") from error
        raise
    values = checked_rewards(name, returned, len(rows))
    wrong = [value for value in values if value not in (0.0, 1.0, None)] if name.startswith("checker") else []
    if wrong:
        raise RewardFailed(f"{name} returned {wrong[0]:g}; expected 1, 0 or None")
    return values


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
