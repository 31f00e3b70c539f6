"""The part of pytest that tests of single functions use. The sandbox has the standard library only."""

import math
import re
import sys
import types
from collections.abc import Callable
from typing import Any


def install(reached: Callable[[], None]) -> None:
    """Make `import pytest` work. `reached` is called by each `raises`."""
    module: Any = types.ModuleType("pytest")
    module.approx = Approx
    module.raises = lambda *given, **options: _raises(reached, *given, **options)
    module.mark = _Marks()
    module.main = lambda *_, **__: 0
    sys.modules["pytest"] = module


class Approx:
    """Equal within a relative tolerance of 1e-6 or an absolute one of 1e-12, as pytest's."""

    def __init__(self, expected: Any, rel: float | None = None, abs: float | None = None, nan_ok: bool = False) -> None:
        self.expected, self.rel, self.abs, self.nan_ok = expected, rel, abs, nan_ok

    def __eq__(self, other: object) -> bool:
        return self._close(other, self.expected)

    def __hash__(self) -> int:
        return 0

    def _close(self, value: Any, expected: Any) -> bool:
        if isinstance(expected, dict):
            same = isinstance(value, dict) and value.keys() == expected.keys()
            return same and all(self._close(value[key], part) for key, part in expected.items())
        if isinstance(expected, list | tuple):
            same = isinstance(value, list | tuple) and len(value) == len(expected)
            return same and all(map(self._close, value, expected))
        if isinstance(value, bool) or not isinstance(value, int | float) or not isinstance(expected, int | float):
            return bool(value == expected)
        if math.isnan(expected):
            return self.nan_ok and math.isnan(value)
        relative = self.rel if self.rel is not None else 0.0 if self.abs is not None else 1e-6
        absolute = self.abs if self.abs is not None else 1e-12
        return math.isclose(value, expected, rel_tol=0.0, abs_tol=max(relative * math.fabs(expected), absolute))


class _Raised:
    def __init__(self, kind: Any, match: str | None) -> None:
        self._kind, self._match = kind, match
        self.value: Any = None
        self.type: Any = None

    def __enter__(self) -> "_Raised":
        return self

    def __exit__(self, kind: Any, error: Any, _: Any) -> bool:
        if kind is None:
            raise AssertionError(f"did not raise {self._kind}")
        if not issubclass(kind, self._kind):
            return False
        self.value, self.type = error, kind
        if self._match is not None and not re.search(self._match, str(error)):
            raise AssertionError("another message was raised")
        return True


def _raises(reached: Callable[[], None], kind: Any, *call: Any, match: str | None = None, **options: Any) -> Any:
    reached()
    raised = _Raised(kind, match)
    if not call:
        return raised
    with raised:
        call[0](*call[1:], **options)
    return raised


class _Marks:
    def __getattr__(self, name: str) -> Any:
        """Any other mark has no effect."""
        return lambda *given, **_: given[0] if len(given) == 1 and callable(given[0]) else (lambda function: function)

    @staticmethod
    def parametrize(names: Any, values: Any, **_: Any) -> Any:
        split = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)

        def mark(function: Any) -> Any:
            cases = getattr(function, "_cases_", [{}])
            sets = [dict(zip(split, each if len(split) > 1 else (each,), strict=True)) for each in values]
            function._cases_ = [{**case, **more} for case in cases for more in sets]
            return function

        return mark
