"""Files that are whole or not there."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from vigneron.errors import UserError


def user_path(name: str | Path) -> Path:
    """A path as a user writes it: what can be none is one line, before anything asks the system for it."""
    try:
        path = Path(name).expanduser()
        parts = [os.fsencode(part) for part in path.parts]
    except (RuntimeError, ValueError) as error:  # no such user's home; half of a character
        raise UserError(f"'{name}' is no path: {error}") from error
    if any(b"\0" in part or len(part) > 255 for part in parts) or sum(map(len, parts)) > 4000:
        raise UserError(f"'{name}' is no path: it is too long, or has a character that no path has")
    return path


def write_atomically(path: Path, text: str) -> None:
    """Write beside and rename: a reader sees the old file or the new one."""
    draft = path.with_name(f".{path.name}.draft")
    with draft.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def write_for_user(path: Path, text: str) -> None:
    try:
        write_atomically(path, text)
    except OSError as error:
        raise UserError(f"cannot write '{path}': {error.strerror}") from error


def parsed_json(text: str | bytes) -> Any:
    """What is no JSON is a ValueError, whatever is wrong with it."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Make a file, or a rename in a folder, survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
