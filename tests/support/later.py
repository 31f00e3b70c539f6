"""Modules that take seconds to import and that few tests need."""

from importlib import import_module
from typing import Any


class Later:
    """A module that is imported when it is first used: every test process collects all files, and runs few of them."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._name), name)
