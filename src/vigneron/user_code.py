"""Import a user's own function by its dotted path."""

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from vigneron.errors import UserError


def python_function(path: str, key: str) -> Callable[..., Any]:
    """`path` is `module:function`; `key` is the config key that errors name."""
    module_name, name = path.split(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # for a module in the working directory
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UserError(f"{key}: cannot import '{module_name}': {error}") from error
    except Exception as error:  # user code: name it, keep the cause for --debug
        what = f"{type(error).__name__}: {error}"
        raise UserError(f"{key}: importing '{module_name}' raised {what}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise UserError(f"{key}: '{module_name}' has no function '{name}'")
    return function
