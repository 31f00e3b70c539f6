"""A run's folder: config, data, metrics, samples, checkpoints, report. It is all that resuming or viewing a run needs.

No torch is imported, so that reading a run is quick.
"""

import fcntl
import glob
import json
import math
import os
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from vigneron.config import Config
from vigneron.errors import UserError, nearest
from vigneron.files import (
    append_line,
    closed_in_forks,
    default_runs_folder,
    lines_of,
    open_regular,
    open_to_append,
    parse_json,
    read_regular_text,
    user_path,
    write_atomically,
    writing,
)
from vigneron.recipe import check_config, config_text, config_yaml, parse_yaml
from vigneron.rubric.read import rubric_text

if TYPE_CHECKING:
    from vigneron.run_data.load import Data


LOCK = ".lock"
LOGS = ("metrics.jsonl", "timings.jsonl", "sampling.jsonl")
# Attempts to take the lock: `is_locked` in another process holds it for a moment.
LOCK_ATTEMPTS = 10


@dataclass
class RunFolder:
    path: Path
    _lock: IO[str] | None = field(default=None, repr=False)

    @classmethod
    def create(cls, runs: Path, name: str, *, exact_name: bool) -> "RunFolder":
        """A new folder `runs/name`; an existing one is refused with `exact_name`, else a number is added."""
        check_name(name)
        for number in range(1, 10_000):
            path = runs / (name if number == 1 else f"{name}-{number}")
            try:
                path.mkdir(parents=True)
            except FileExistsError:
                if exact_name:
                    cls.refuse_taken(runs, name)
                continue
            except OSError as error:
                raise UserError(f"cannot create the run's folder '{path}': {error.strerror}") from error
            return cls(path)
        raise UserError(f"too many runs named '{name}' in '{runs}': choose another --name")

    @staticmethod
    def check_can_be_created(runs: Path) -> None:
        """Checked before anything slow."""
        there = next(path for path in (runs, *runs.absolute().parents) if path.exists())
        if not there.is_dir():
            raise UserError(f"cannot create a run in '{runs}': '{there}' is not a folder")
        if not os.access(there, os.W_OK | os.X_OK):
            raise UserError(f"cannot create a run in '{runs}': '{there}' is not writable")

    @staticmethod
    def refuse_taken(runs: Path, name: str) -> None:
        path = runs / name
        if path.exists():
            raise UserError(f"'{path}' exists: continue it with `vigneron resume {path}`, or choose another --name")

    @classmethod
    def open(cls, path: str | Path) -> "RunFolder":
        """By its folder, or by its name in the default folder of runs."""
        path = run_path(path)
        if not (path / "config.yaml").is_file():
            raise UserError(_no_run(path))
        if (link := outside_link(path)) is not None:
            raise UserError(f"'{link}' links to a place outside the run's folder: replace it by the file itself")
        if (special := special_file(path)) is not None:
            raise UserError(f"'{special}' is not a regular file: remove it")
        return cls(path)

    def lock(self) -> None:
        """One process writes at a time. The operating system releases the lock when the process ends: a process forked
        by a reward does not hold it."""
        try:
            self._lock = open_to_append(self.path / LOCK)
            closed_in_forks(self._lock)
            for left in reversed(range(LOCK_ATTEMPTS)):
                try:
                    fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if not left:
                        raise
                    time.sleep(0.05)  # another process may be in `is_locked`
        except BlockingIOError as error:
            raise UserError(f"another process is training in '{self.path}'") from error
        except OSError as error:
            raise UserError(f"cannot write in '{self.path}': {error.strerror}") from error
        for name in ("", "checkpoints", *LOGS, "samples.sqlite", "config.yaml"):
            if (self.path / name).exists() and not os.access(self.path / name, os.W_OK):
                self.unlock()
                raise UserError(f"cannot write '{self.path / name}': check its owner and permissions")

    def is_locked(self) -> bool:
        """Whether a process is training here. Takes the lock for a moment, and creates no file."""
        try:
            with open_regular(self.path / LOCK) as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def write_config(self, config: Config) -> None:
        with writing(self.path / "config.yaml"):
            write_atomically(self.path / "config.yaml", config_yaml(config))

    def config(self, *, user_code: bool = False) -> Config:
        """`user_code`: import a method of the user's own, which only a run that is resumed or loaded needs."""
        where = self.path / "config.yaml"
        given = parse_yaml(config_text(where, f"'{where}'"), str(where))
        return check_config(given, str(where), user_code=user_code, stored=True)

    @property
    def rubric(self) -> Path:
        """The run's copy, which may be edited while it runs."""
        return self.path / "rubric.yaml"

    @property
    def held_out_rubric(self) -> Path:
        return self.path / "held-out-rubric.yaml"

    def write_rubrics(self, file: str, held_out: str | None) -> None:
        write_atomically(self.rubric, rubric_text(file))
        if held_out is not None:
            write_atomically(self.held_out_rubric, rubric_text(held_out))

    @contextmanager
    def rubric_replaced(self, file: str | None) -> Iterator[None]:
        """Replace the rubric, if `file` is given; the old one is restored if the block raises."""
        if file is None:
            yield
            return
        before = read_regular_text(self.rubric)
        write_atomically(self.rubric, rubric_text(file))
        try:
            yield
        except BaseException:
            write_atomically(self.rubric, before)
            raise

    def write_data(self, config: Config, data: "Data") -> "Data":
        """Keep the rows, of a large source where they are. Returns the data as it is read from here."""
        from vigneron.run_data.stored import store_data

        with writing(self.path / "data"):
            return store_data(self.path / "data", config, data)

    def data(self, config: Config) -> "Data":
        """The run's rows, checked for its config as it was read with user code."""
        from vigneron.run_data.stored import open_data

        return open_data(self.path / "data", config)

    def remove(self) -> None:
        """Delete the folder of a run that could not start."""
        self.unlock()
        shutil.rmtree(self.path, ignore_errors=True)

    def append(self, name: str, record: dict[str, Any]) -> None:
        """One line of JSON. NaN (a metric without a value) is null."""
        line = json.dumps({k: _number(v) for k, v in record.items()}, ensure_ascii=False)
        with writing(self.path / name):
            append_line(self.path / name, line)

    def merge_into_last_line(self, name: str, record: dict[str, Any]) -> None:
        """Add the values to the last line if it is of the same step; else append a line."""
        path = self.path / name
        *lines, _ = read_regular_text(path, "replace").split("\n") if path.is_file() else [""]
        if not lines or _step_of(lines[-1]) != record["step"]:
            self.append(name, record)
            return
        whole = {**record_of(lines[-1].encode()), **{k: _number(v) for k, v in record.items()}}
        with writing(path):
            write_atomically(
                path, "".join(f"{line}\n" for line in [*lines[:-1], json.dumps(whole, ensure_ascii=False)])
            )

    def records(self, name: str, *, skip_damaged: bool = False) -> Iterator[dict[str, Any]]:
        """The complete lines of a file, each with its step; a last line that a kill cut short is left out.

        A damaged line is refused, or skipped: `damage_of` names it.
        """
        path = self.path / name
        if not path.is_file():
            return
        try:
            for number, line in enumerate(lines_of(path), start=1):
                try:
                    record = record_of(line)
                except ValueError as error:
                    if skip_damaged:
                        continue
                    raise UserError(f"cannot read '{path}': line {number} {error}") from error
                yield record
        except OSError as error:
            raise UserError(f"cannot read '{path}': {error.strerror}") from error

    def metrics(self) -> list[dict[str, Any]]:
        """Without damaged lines. Raises if all are damaged."""
        records = list(self.records("metrics.jsonl", skip_damaged=True))
        return records or list(self.records("metrics.jsonl"))

    def forget_after(self, step: int) -> None:
        """Remove what was logged after a checkpoint, and damaged lines: the resumed run logs these steps again."""
        for name in (*LOGS, "notices.jsonl"):
            path = self.path / name
            if path.is_file():
                *lines, _ = read_regular_text(path, "replace").split("\n")
                with writing(path):
                    write_atomically(path, "".join(f"{line}\n" for line in lines if _step_of(line) <= step))


def record_of(line: bytes) -> dict[str, Any]:
    """A line of a log. A damaged one is a ValueError, whose text follows the line's number."""
    try:
        record = parse_json(line)
    except ValueError:  # not JSON, or not UTF-8
        raise ValueError("is not JSON") from None
    if not isinstance(record, dict):
        raise ValueError("is not a JSON object")
    if type(record.get("step")) is not int:
        raise ValueError("has no step")
    return record


def _step_of(line: str) -> float:
    try:
        step = parse_json(line)["step"]
    except (ValueError, TypeError, KeyError):
        return math.inf
    return float(step) if type(step) is int and abs(step) < 2**53 else math.inf


def outside_link(path: Path) -> Path | None:
    """A link in a run's folder to a place outside it, which is refused: the folder may come from someone else."""
    here = path.resolve()
    for entry in (*path.iterdir(), *path.glob("data/*"), *path.glob("checkpoints/*")):
        try:
            if entry.is_symlink() and not entry.resolve().is_relative_to(here):
                return entry
        except (OSError, RuntimeError):  # a link to itself
            return entry
    return None


def special_file(path: Path) -> Path | None:
    """A pipe, a device or a socket in a run's folder, which could block or never end."""
    levels = ("data/*", "checkpoints/*", "checkpoints/*/*", "checkpoints/*/state/*")
    for entry in (*path.iterdir(), *(entry for level in levels for entry in path.glob(level))):
        try:
            mode = entry.stat().st_mode
        except FileNotFoundError:  # deleted meanwhile, or a link to nothing
            continue
        except OSError:  # a link to itself
            return entry
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            return entry
    return None


def _number(value: Any) -> Any:
    return None if isinstance(value, float) and value != value else value


def check_name(name: str) -> None:
    if not name or name.startswith(".") or "/" in name or not name.isprintable():
        raise UserError(
            f"{name!r} is not a valid run name: it must be a folder name without '/' that does not start with a dot"
        )


def run_path(name: str | Path) -> Path:
    """The folder of a run, by its path or by its name in the default folder of runs: `runs/NAME` or `NAME`. A path that
    exists is taken as it is, and so is one that is no run's."""
    path = user_path(name)
    inside = path.parts[1:] if path.parts[:1] == ("runs",) else path.parts
    if path.exists() or path.is_absolute() or not inside or ".." in inside:
        return path
    there = default_runs_folder().joinpath(*inside)
    return there if (there / "config.yaml").is_file() else path


def _no_run(path: Path) -> str:
    """Why the path is no run's, and which run may be meant."""
    if path.exists():
        run = path.parent.parent
        if path.parent.name == "checkpoints" and (run / "config.yaml").is_file():
            step = path.name.removeprefix("step-")
            return f"'{path}' is a checkpoint: name its run, '{run}' (eval, chat and export take --step {step})"
        return f"'{path}' is not a run's folder: it has no config.yaml"
    if len(path.parts) > 1:
        return f"there is no run '{path}': no such folder{_meant(nearest(path.name, run_names()))}"
    elsewhere = [str(file.parent) for file in sorted(Path().glob(f"*/{glob.escape(path.name)}/config.yaml"))]
    meant = _meant(next(iter(elsewhere), None) or nearest(path.name, run_names()))
    return f"there is no run '{path}' in '{default_runs_folder()}'{meant}; name a run elsewhere by its path"


def _meant(name: str | None) -> str:
    return " (`vigneron runs` lists them)" if name is None else f" (did you mean '{name}'?)"


def run_names() -> list[str]:
    """The names of the runs in the default folder of runs."""
    return sorted(path.parent.name for path in default_runs_folder().glob("*/config.yaml"))
