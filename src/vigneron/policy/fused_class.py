"""Classes of modules with another forward pass, which can be turned off."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

KINDS = (torch.float32, torch.bfloat16)
"""Dtypes of hidden states that the kernels take."""

_plain = False


@contextmanager
def plain_modules() -> Iterator[None]:
    """Use the modules' own classes meanwhile: the kernels' gradients cannot be differentiated again."""
    global _plain
    before, _plain = _plain, True
    try:
        yield
    finally:
        _plain = before


def kind_of(module: Any) -> Any:
    return type(module)


def subclass(kind: Any, fused: Any) -> Any:
    """Of a module's class, with another forward pass."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return (kind.forward if _plain else fused)(self, *args, **kwargs)

    return type(kind.__name__, (kind,), {"forward": forward, "__module__": kind.__module__, "fused": True})
