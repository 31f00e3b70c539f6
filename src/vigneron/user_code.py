"""Import a user's own function by its dotted path."""

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
