"""Texts in cells of a CSV file: none begins as a formula would, and every one is read back as it was."""

from typing import Any

FORMULA = ("=", "+", "-", "@", "\t", "\r")


def to_cell(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and _risky(value) else value


def of_cell(value: Any) -> Any:
    return value[1:] if isinstance(value, str) and value.startswith("'") and _risky(value) else value


def _risky(text: str) -> bool:
    """Behind however many quotes, so that one can be put before a text and taken away again."""
    return text.lstrip("'").startswith(FORMULA)
