"""Import a user's own function by its dotted path, and check how it can be called."""

import inspect
from collections.abc import Callable
from typing import Any

from vigneron.config.custom import import_object
from vigneron.errors import UserError


def python_function(path: str, key: str) -> Callable[..., Any]:
    """`path` is `module:function`; `key` is the config key that errors name."""
    try:
        function: Callable[..., Any] = import_object(path)
    except ValueError as error:
        raise UserError(f"{key}: {error}") from error
    return function


def check_call(function: Callable[..., Any], name: str, form: str, /, *arguments: Any, **keywords: Any) -> None:
    """Raise if its signature does not take these arguments. `form` is the call as errors show it."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of a builtin: it is called as it is
        return
    try:
        signature.bind(*arguments, **keywords)
    except TypeError as error:
        raise UserError(f"{name} cannot be called as {form}: {error}") from error


def check_method(owner: type, method: str, name: str, form: str, /, *arguments: Any) -> None:
    """The same for the method of an object that is not made yet."""
    given = getattr(owner, method)
    if not callable(given):
        raise UserError(f"{name}: `{method}` should be a method, not {type(given).__name__}")
    plain = inspect.isfunction(inspect.getattr_static(owner, method))
    check_call(given, name, form, *((None, *arguments) if plain else arguments))
