"""Atomic writes, user-given paths, JSON from untrusted files, hashes."""

import errno
import hashlib
import json
import os
import sqlite3
import stat
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import IO, Any

from vigneron.errors import UserError, reason

LONGEST_LINE = 2**24
"""Bytes of a line of a log."""
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


def user_path(name: str | Path) -> Path:
    """A path given by a user, with `~` expanded. Invalid paths are refused before the file system is accessed."""
    try:
        path = Path(name).expanduser()
        parts = [os.fsencode(part) for part in path.parts]
    except (RuntimeError, ValueError) as error:  # unknown home folder; lone surrogate
        raise UserError(f"'{name}' is not a valid path: {error}") from error
    if any(b"\0" in part or len(part) > 255 for part in parts) or sum(map(len, parts)) > 4000:
        raise UserError(f"'{name}' is not a valid path: it is too long or contains a NUL character")
    return path


def default_runs_folder() -> Path:
    return Path(os.environ.get("VIGNERON_RUNS", "runs"))


def open_regular(path: Path) -> BufferedReader:
    """Open a file of a folder that may come from others for reading. Raises OSError for a pipe, a device or a socket,
    which could block or never end."""
    return open(path, "rb", opener=regular_opener)


def open_to_append(path: Path) -> IO[str]:
    """The same for writing: a file that it may link to is not truncated."""
    return open(path, "a", opener=regular_opener)


def regular_opener(name: str, flags: int) -> int:
    """`opener` of Python's `open`: does not wait for the other end of a pipe, and refuses what is not a file."""
    handle = os.open(name, flags | os.O_NONBLOCK, 0o666)
    try:
        check_regular(handle)
    except BaseException:
        os.close(handle)
        raise
    return handle


def check_regular(file: int | Path) -> None:
    """Of a path or an open file."""
    mode = os.stat(file).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is not a regular file")


def read_regular(path: Path, limit: int = -1) -> bytes:
    """The bytes of a file, or the first `limit` of them."""
    with open_regular(path) as file:
        return file.read(limit)


def read_regular_text(path: Path, errors: str = "strict") -> str:
    return read_regular(path).decode("utf-8", errors)


def lines_of(path: Path) -> Iterator[bytes]:
    """The lines of a log without their newlines, and without an unfinished last one, which a kill leaves.

    A line of more than LONGEST_LINE bytes is read as an empty one, which is not JSON: it would fill the memory.
    """
    with open_regular(path) as file:
        while line := file.readline(LONGEST_LINE):
            too_long = False
            while line and not line.endswith(b"\n"):
                too_long, line = True, file.readline(LONGEST_LINE)
            if line:
                yield b"" if too_long else line[:-1]


def give_mode_of(file: Path) -> None:
    """Give all files beside a file, and below it, its permissions: safetensors writes files that only their owner can
    read, whatever the umask."""
    mode = stat.S_IMODE(file.stat().st_mode)
    for other in file.parent.rglob("*"):
        if other.is_file() and not other.is_symlink() and stat.S_IMODE(other.stat().st_mode) != mode:
            other.chmod(mode)


def write_atomically(path: Path, text: str) -> None:
    """Write a temporary file and rename it: a reader sees the old file or the new one."""
    write_pieces(path, [text])


def write_pieces(path: Path, pieces: Iterable[str]) -> None:
    """`write_atomically` for a text that need not fit into memory."""
    draft = path.with_name(f".{path.name}.draft")
    try:
        with draft.open("w", encoding="utf-8") as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn write errors (full disk, no permission) into a one-line error."""
    try:
        yield
    except (OSError, sqlite3.OperationalError) as error:  # a damaged database is another error
        raise UserError(f"cannot write '{path}': {reason(error)}; earlier checkpoints are intact") from error


@contextmanager
def full_disk_errors(path: Path) -> Iterator[None]:
    """Turn a full disk into a one-line error, whichever file was being written."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        raise UserError(f"cannot write in '{path}': {error.strerror}; earlier checkpoints are intact") from error
    except sqlite3.OperationalError as error:
        if "disk" not in str(error):
            raise
        raise UserError(f"cannot write in '{path}': {error}; earlier checkpoints are intact") from error


def append_line(path: Path, line: str) -> None:
    """Append the whole line, or nothing if the write fails."""
    with path.open("ab") as file:
        size = file.tell()
        try:
            file.write(line.encode() + b"\n")
            file.flush()
        except OSError:
            with suppress(OSError):
                os.truncate(path, size)
            raise


@contextmanager
def writing_for_user(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write '{path}': {error.strerror}") from error


def write_for_user(path: Path, text: str) -> None:
    with writing_for_user(path):
        write_atomically(path, text)


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """A .jsonl file."""
    write_for_user(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def parse_int(text: str) -> int:
    """`parse_int` for untrusted JSON: refuses integers too large for a float."""
    if len(text) > 300:
        raise ValueError("a number with more than 300 digits")
    return int(text)


def parse_json(text: str | bytes) -> Any:
    """Parse untrusted JSON. Any fault in it is a ValueError."""
    try:
        return json.loads(text, parse_int=parse_int)
    except RecursionError:
        raise ValueError("nested too deeply") from None


_closed_in_forks: weakref.WeakSet[IO[Any]] = weakref.WeakSet()


def closed_in_forks(file: IO[Any]) -> None:
    """Close the file in processes forked from this one. A lock on it belongs to all that have it open."""
    _closed_in_forks.add(file)


def _after_fork() -> None:
    for file in list(_closed_in_forks):
        file.close()


os.register_at_fork(after_in_child=_after_fork)


def sha256_of(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """fsync a file, or a folder after a rename."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_new_file(path: Path, suffixes: Sequence[str] = ()) -> None:
    """The path must have one of the suffixes, and must not exist."""
    if suffixes and path.suffix not in suffixes:
        raise UserError(f"'{path}' should end in {' or '.join(suffixes)}")
    if path.exists():
        raise UserError(f"'{path}' exists: choose another name")


def check_out(path: Path) -> None:
    """A new .jsonl file in a folder that exists."""
    check_new_file(path, [".jsonl"])
    if not path.absolute().parent.is_dir():
        raise UserError(f"cannot write '{path}': the folder '{path.absolute().parent}' does not exist")
