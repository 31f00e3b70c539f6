"""Files that are whole or not there."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from vigneron.errors import UserError


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
