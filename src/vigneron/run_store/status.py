"""The state of a run, read from its folder: `status.json`, the lock, and the end of metrics.jsonl."""

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from vigneron.errors import UserError, visible
from vigneron.files import open_regular, parse_json, read_regular, write_atomically
from vigneron.recipe import config_text
from vigneron.redaction import redacted
from vigneron.run_store.folder import RunFolder
from vigneron.values import is_number
from vigneron.yaml_text import quick_yaml

STATUS = "status.json"
# More than the longest line of metrics.
TAIL_BYTES = 2**18
LARGEST_MANIFEST = 2**22
# Steps from the end in which a run's last metrics are searched.
LAST_STEPS = 100

State = Literal["starting", "running", "finished", "stopped", "failed", "killed"]
"""`stopped`: by a signal, and saved. `killed`: it ended without writing its state."""


@dataclass(frozen=True)
class RunStatus:
    """One run of a list. `metrics` are the last values, by their keys in metrics.jsonl."""

    path: Path
    state: State
    recipe: str = ""
    method: str = ""
    step: int = 0
    steps: int = 0
    began: float | None = None
    """Unix time, like the next two; `changed` is when metrics.jsonl was last written."""
    ended: float | None = None
    changed: float | None = None
    error: str | None = None
    outcome: Any = field(default=None, repr=False)
    """What the run reached, as written when it ended (`run_store.outcome.stored_outcome` reads it)."""
    code: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The version that trained it last (`run_store.code_version`); empty of older runs."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """As written, not validated."""

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def alive(self) -> bool:
        return self.state in ("starting", "running")


def write_status(folder: RunFolder, state: State, **more: Any) -> None:
    """Update status.json; other keys stay. Never fails: the state to write may be that the disk is full."""
    path, text = folder.path / STATUS, redacted(json.dumps({**_read_status(folder.path), "state": state, **more}))
    try:
        write_atomically(path, text)
    except OSError:
        with suppress(OSError), path.open("r+", encoding="utf-8") as file:  # overwrite in place: needs no new space
            file.write(text)
            file.truncate()


def status_of(path: Path) -> RunStatus:
    folder = RunFolder(path)
    written, config, last = _read_status(path), _config(path), last_records(path / "metrics.jsonl", limit=LAST_STEPS)
    metrics = {k: float(v) for record in last for k, v in record.items() if is_number(v) and k != "step"}
    method = config.get("method")
    step = int(last[-1]["step"]) if last else 0
    steps = config["steps"] if isinstance(config.get("steps"), int) else 0
    return RunStatus(
        path=path,
        state=_state(written, folder.is_locked(), 0 < steps <= step),
        recipe=visible(str(config.get("recipe", ""))),
        method=visible(str(method.get("name", ""))) if isinstance(method, dict) else "",
        step=step,
        steps=steps,
        began=_time(written.get("began")),
        ended=_time(written.get("ended")),
        changed=_changed(path / "metrics.jsonl"),
        error=visible(str(written["error"])) if written.get("error") else None,
        outcome=written.get("outcome"),
        code=_texts(written.get("code")),
        metrics=metrics,
        config=config,
    )


def run_folders(runs: Path) -> list[Path]:
    """The runs in a folder and in its subfolders (a comparison's), by name; hidden folders are skipped."""
    if not runs.is_dir():
        raise UserError(f"there is no folder '{runs}': train a run first, or set VIGNERON_RUNS to your runs' folder")
    folders: list[Path] = []
    for path in sorted(p for p in runs.iterdir() if p.is_dir() and not p.name.startswith(".")):
        if (path / "config.yaml").is_file():
            folders.append(path)
        else:
            folders += sorted(p.parent for p in path.glob("[!.]*/config.yaml"))
    return folders


def last_records(path: Path, limit: int | None = None) -> list[dict[str, Any]]:
    """The last complete lines of a JSON Lines file, at most `limit`, without reading the rest of the file."""
    try:
        with open_regular(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            lines = file.read(TAIL_BYTES).splitlines(keepends=True)
    except OSError:
        return []
    whole = [line for line in (lines if size <= TAIL_BYTES else lines[1:]) if line.endswith(b"\n")]
    records = []
    for line in whole if limit is None else whole[-limit:]:
        try:
            record = parse_json(line)
        except ValueError:  # a damaged line is skipped
            continue
        if isinstance(record, dict) and isinstance(record.get("step"), int):
            records.append(record)
    return records


def _time(value: Any) -> float | None:
    return float(value) if is_number(value) else None


def _texts(value: Any) -> dict[str, str]:
    return {k: visible(v)[:80] for k, v in value.items() if isinstance(v, str)} if isinstance(value, dict) else {}


def _state(written: Mapping[str, Any], locked: bool, done: bool) -> State:
    """A folder without status.json (a copy, or an older one) is finished where its last step is the config's."""
    state = written.get("state", "finished" if done else None)
    if locked:
        return "running" if state == "running" else "starting"
    return state if state in ("finished", "stopped", "failed") else "killed"


def _read_status(path: Path) -> dict[str, Any]:
    try:
        written = parse_json(read_regular(path / STATUS, TAIL_BYTES))
    except (OSError, ValueError):
        return {}
    return written if isinstance(written, dict) else {}


def _config(path: Path) -> dict[str, Any]:
    try:
        config = quick_yaml(config_text(path / "config.yaml", "the config"), "config.yaml")
    except UserError:
        return {}
    return config if isinstance(config, dict) else {}


def _changed(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


@dataclass(frozen=True)
class SavedCheckpoint:
    step: int
    bytes: int


def bytes_in(path: Path) -> int:
    """Size of all files in a folder. Files that disappear meanwhile are ignored, links are not followed."""
    total = 0
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    total += bytes_in(Path(entry.path))
                elif entry.is_file(follow_symlinks=False):
                    total += entry.stat(follow_symlinks=False).st_size
    except OSError:
        pass
    return total


def saved_checkpoints(run: Path) -> list[SavedCheckpoint]:
    """A run's complete checkpoints, oldest first."""
    try:
        folders = list((run / "checkpoints").iterdir())
    except OSError:
        return []
    named = [path for path in folders if re.fullmatch(r"step-\d+", path.name)]
    checkpoints = [
        SavedCheckpoint(int(path.name.removeprefix("step-")), bytes_in(path)) for path in named if _has_its_files(path)
    ]
    return sorted(checkpoints, key=lambda saved: saved.step)


def _has_its_files(checkpoint: Path) -> bool:
    """Whether all files of its manifest exist; their hashes are checked on loading."""
    try:
        names = parse_json(read_regular(checkpoint / "manifest.json", LARGEST_MANIFEST))
        return isinstance(names, dict) and all((checkpoint / name).is_file() for name in names)
    except (OSError, ValueError):
        return False


def rows_in(run: Path, part: Literal["train", "held_out"]) -> int:
    """The number of rows of a run's copy, or of a large source that its folder refers to."""
    try:
        if (source := run / "data" / f"{part}.source.json").is_file():
            return int(parse_json(read_regular(source))["rows"])
        with open_regular(run / "data" / f"{part}.jsonl") as file:
            return sum(block.count(b"\n") for block in iter(lambda: file.read(2**20), b""))
    except (OSError, ValueError, TypeError, KeyError):
        return 0


def readable_size(size: float) -> str:
    """As in `512 MB`; 1 kB is 1000 bytes."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if size >= 10 or unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
