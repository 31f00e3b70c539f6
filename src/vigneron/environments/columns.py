"""The columns that an environment needs of its row."""

from typing import Any, TypeVar

from vigneron.data.prompts import Row
from vigneron.errors import UserError

T = TypeVar("T")


def needed(row: Row, name: str, kind: type[T]) -> T:
    """The row's column. Raises if it is missing or of another kind."""
    value: Any = row.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise UserError(f"the environment needs a column `{name}` ({kind.__name__}) in every row, not {value!r}")
    return value
