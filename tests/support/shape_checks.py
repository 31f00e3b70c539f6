"""Shapes and types of the tensor maths are checked at run time, in tests only: importing this turns it on.

Not where there is a GPU: torch.compile, which is tested there, cannot trace the checks.
"""

from typing import Any

import jaxtyping
import torch

_checked = jaxtyping.jaxtyped


def _checked_once(**options: Any) -> Any:
    """Functions inside of functions, which name no shapes, are left alone: a check would be compiled in every call."""
    check = _checked(**options)
    return lambda function: function if "<locals>" in function.__qualname__ else check(function)


if not torch.cuda.is_available():
    jaxtyping.jaxtyped = _checked_once
    jaxtyping.install_import_hook("vigneron.core", "beartype.beartype")
