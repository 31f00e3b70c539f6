"""A check that several commands share."""

from collections.abc import Sequence
from pathlib import Path

from vigneron.errors import UserError


def check_new_file(path: Path, suffixes: Sequence[str] = ()) -> None:
    """The path must have one of the suffixes, and must not exist."""
    if suffixes and path.suffix not in suffixes:
        raise UserError(f"'{path}' should end in {' or '.join(suffixes)}")
    if path.exists():
        raise UserError(f"'{path}' exists: choose another name")
