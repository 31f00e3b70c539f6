"""Shapes and types of the tensor maths are checked at run time, in tests only: importing this turns it on.

Not where there is a GPU: torch.compile, which is tested there, cannot trace the checks.
"""

from types import FunctionType
from typing import Any

import jaxtyping
import torch
from beartype import beartype

_checked = jaxtyping.jaxtyped


def _checked_once(**options: Any) -> Any:
    """Functions inside of functions, which name no shapes, are left alone: a check would be compiled in every call.
    Other functions without shapes have their types checked, which takes far less time."""
    check = _checked(**options)

    def checked(function: Any) -> Any:
        if "<locals>" in function.__qualname__:
            return function
        if isinstance(function, FunctionType) and "jaxtyping" not in repr(function.__annotations__):
            return beartype(function)
        return check(function)

    return checked


if not torch.cuda.is_available():
    jaxtyping.jaxtyped = _checked_once
    jaxtyping.install_import_hook("vigneron.core", "beartype.beartype")
