"""Files that are whole or not there."""

import errno
import hashlib
import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from vigneron.errors import UserError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


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
    try:
        with draft.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """A full disk, a folder that cannot be written: one line, whoever was writing."""
    try:
        yield
    except (OSError, sqlite3.OperationalError) as error:  # a damaged database is another error
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"cannot write '{path}': {reason}; the checkpoints before it are whole") from error


@contextmanager
def full_disk_said(path: Path) -> Iterator[None]:
    """A disk that is full, whatever was being written: a cache, a log."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise UserError(f"cannot write in '{path}': {error.strerror}; the checkpoints are whole") from error
    except sqlite3.OperationalError as error:
        if "disk" not in str(error):
            raise
        raise UserError(f"cannot write in '{path}': {error}; the checkpoints are whole") from error


def append_line(path: Path, line: str) -> None:
    """The whole line or nothing of it."""
    with path.open("ab") as file:
        size = file.tell()
        try:
            file.write(line.encode() + b"\n")
            file.flush()
        except OSError:
            with suppress(OSError):
                os.truncate(path, size)
            raise


def write_for_user(path: Path, text: str) -> None:
    try:
        write_atomically(path, text)
    except OSError as error:
        raise UserError(f"cannot write '{path}': {error.strerror}") from error


def whole_number(text: str) -> int:
    """For JSON from others: one that is too large for a float would fail where it is used."""
    if len(text) > 300:
        raise ValueError("a number with too many digits")
    return int(text)


def parsed_json(text: str | bytes) -> Any:
    """What is no JSON is a ValueError, whatever is wrong with it."""
    try:
        return json.loads(text, parse_int=whole_number)
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
