"""Checks of a case: it works or raises one clear error, within its time, and writes only to its own folder."""

import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from vigneron.errors import UserError

Outcome = Literal["worked", "refused"]
LONGEST_LINE = 1_000
MOST_LINES = 250
# CPU time, so that a busy machine makes no difference; and wall-clock time, for waits.
CPU_SECONDS, CLOCK_SECONDS = 10.0, 120.0
RUNS_SOMETHING = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "socket.connect", "os.fork")
# Processes with limits, in which templates are rendered and tokenizers tried.
WORKERS = ("chat_template_worker.py", "tokenizer_worker.py")
# The number of an audit event's path arguments, and the positions of its folder handles.
PATHS = {"os.mkdir": 1, "os.remove": 1, "os.rmdir": 1, "os.rename": 2, "os.link": 2, "shutil.rmtree": 1}
PATHS |= {"sqlite3.connect": 1, "os.truncate": 1, "os.chmod": 1}
HANDLE = {"os.mkdir": 2, "os.remove": 1, "os.rmdir": 1}
THROUGH_LINKS = ("open", "sqlite3.connect", "os.truncate", "os.chmod")


class Finding(Exception):
    """A case with a forbidden outcome. Findings with the same `fault` likely have one cause."""

    def __init__(self, what: str, fault: str = "") -> None:
        super().__init__(what)
        self.fault = fault or re.sub(r"'[^']*'|\"[^\"]*\"|\\d+", "…", what)[:60]


class _Hung(BaseException):
    """Not an Exception, which the tested code might catch."""


class _Watch:
    """The audit hook, which cannot be removed: it is installed once, and active while a folder is set.

    Access outside the folder is recorded and prevented: a case may contain links to anywhere.
    """

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.seen: list[str] = []
        self.added = False

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.folder is None:
            return
        if event in RUNS_SOMETHING:
            if not any(worker in repr(arguments[:2]) for worker in WORKERS):
                self._refuse(f"{event} {arguments[:2]!r:.200}")
        elif event == "open":
            path, mode, flags = arguments
            by_flags = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            if any(letter in mode for letter in "wax+") if mode else by_flags:
                self._check(event, path)
        elif event in PATHS and (event not in HANDLE or arguments[HANDLE[event]] == -1):
            for path in arguments[: PATHS[event]]:
                self._check(event, path)

    def _check(self, event: str, path: Any) -> None:
        if not isinstance(path, str | bytes | os.PathLike):
            return
        name = os.fsdecode(path).removeprefix("file://").partition("?mode=ro")[0]
        # For created, removed or renamed files the containing folder is checked; a link itself may be removed.
        real = os.path.realpath(name) if event in THROUGH_LINKS else _beside(name)
        if not f"{real}/".startswith(f"{self.folder}/") and name not in (":memory:", os.devnull):
            self._refuse(f"{event} {name!r}")

    def _refuse(self, what: str) -> None:
        self.seen.append(what)
        raise PermissionError(f"outside the case's folder: {what}")


def _beside(name: str) -> str:
    folder, last = os.path.split(name.rstrip("/"))
    return os.path.join(os.path.realpath(folder), last)


_WATCH = _Watch()


@contextmanager
def watched(folder: Path) -> Iterator[None]:
    if not _WATCH.added:
        sys.addaudithook(_WATCH)
        _WATCH.added = True
    _WATCH.folder, _WATCH.seen = folder.resolve(), []
    try:
        yield
    finally:
        _WATCH.folder = None


def _hung(_number: int, _frame: FrameType | None) -> None:
    raise _Hung


@contextmanager
def _timed() -> Iterator[None]:
    clocks = {signal.SIGPROF: (signal.ITIMER_PROF, CPU_SECONDS), signal.SIGALRM: (signal.ITIMER_REAL, CLOCK_SECONDS)}
    before = {number: signal.signal(number, _hung) for number in clocks}
    for timer, seconds in clocks.values():
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for timer, _ in clocks.values():
            signal.setitimer(timer, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def outcome_of(case: Callable[[], Any], folder: Path) -> Outcome:
    """Of one case, which may write in `folder`."""
    outcome: Outcome = "worked"
    with watched(folder):
        try:
            with _timed():
                case()
        except UserError as error:
            outcome = "refused"
            _check_message(str(error))
        except _Hung as error:
            raise Finding(f"hangs\n{_last_frames(error)}", f"hangs {_where(error)}") from None
        except Exception as error:  # any other error is a finding
            if not _WATCH.seen:
                what = f"{type(error).__name__}: {str(error)[:300]}\n{_last_frames(error)}"
                raise Finding(what, f"{type(error).__name__} {_where(error)}") from None
    if _WATCH.seen:  # even if it was caught
        raise Finding(f"reaches outside its folder: {_WATCH.seen[:3]}")
    return outcome


def _last_frames(error: BaseException) -> str:
    return "".join(traceback.format_list(traceback.extract_tb(error.__traceback__)[-6:]))


def _where(error: BaseException) -> str:
    """The innermost traceback line in Vigneron."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f"{os.sep}vigneron{os.sep}" in f.filename]
    return f"{Path(frames[-1].filename).name}, {frames[-1].name}" if frames else "outside"


def _check_message(message: str) -> None:
    """Check that a message has short printable lines: no control characters, no traceback."""
    lines = message.split("\n")
    if not message.strip() or len(lines) > MOST_LINES or "Traceback" in message:
        raise Finding(f"an error of {len(lines)} lines: {message[:300]!r}")
    for line in lines:
        if len(line) > LONGEST_LINE:
            raise Finding(f"an error with a line of {len(line)} characters: {line[:300]!r}")
        if not line.isprintable():
            raise Finding(f"an error with characters that are not printable: {line[:300]!r}")
