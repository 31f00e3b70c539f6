"""What a run is doing, from its folder alone: `status.json`, the lock, and the last line of its metrics."""

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from vigneron.errors import UserError, visible
from vigneron.files import parse_json, write_atomically
from vigneron.recipe import config_text
from vigneron.redaction import redacted
from vigneron.run_store.folder import RunFolder
from vigneron.values import is_number
from vigneron.yaml_text import quick_yaml

STATUS = "status.json"
# More than the longest line of metrics.
TAIL_BYTES = 2**18
# Of so many steps a run's last figures are looked for: longer ago they say little of it.
LOOKED_BACK = 100

State = Literal["starting", "running", "finished", "stopped", "failed", "killed"]
"""`stopped`: by a signal, and saved. `killed`: it ended without a word."""


@dataclass(frozen=True)
class RunStatus:
    """One run of a list. `figures` are those of its last steps, by their names in metrics.jsonl."""

    path: Path
    state: State
    recipe: str = ""
    method: str = ""
    step: int = 0
    steps: int = 0
    began: float | None = None
    """Seconds since 1970, as are the following; `changed` is when its metrics were last written."""
    ended: float | None = None
    changed: float | None = None
    error: str | None = None
    figures: Mapping[str, float] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """As it is written, unchecked."""

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def alive(self) -> bool:
        return self.state in ("starting", "running")


def write_status(folder: RunFolder, state: State, **more: Any) -> None:
    """Keep what was said before, such as when it began. Never fails: what it says may be that the disk is full."""
    path, text = folder.path / STATUS, redacted(json.dumps({**_said(folder.path), "state": state, **more}))
    try:
        write_atomically(path, text)
    except OSError:
        with suppress(OSError), path.open("r+", encoding="utf-8") as file:  # over the old one, which has its room
            file.write(text)
            file.truncate()


def status_of(path: Path) -> RunStatus:
    folder = RunFolder(path)
    said, config, last = _said(path), _config(path), last_records(path / "metrics.jsonl", most=LOOKED_BACK)
    figures = {k: float(v) for record in last for k, v in record.items() if is_number(v) and k != "step"}
    method = config.get("method")
    step = int(last[-1]["step"]) if last else 0
    steps = config["steps"] if isinstance(config.get("steps"), int) else 0
    return RunStatus(
        path=path,
        state=_state(said, folder.is_locked(), 0 < steps <= step),
        recipe=visible(str(config.get("recipe", ""))),
        method=visible(str(method.get("name", ""))) if isinstance(method, dict) else "",
        step=step,
        steps=steps,
        began=_time(said.get("began")),
        ended=_time(said.get("ended")),
        changed=_changed(path / "metrics.jsonl"),
        error=visible(str(said["error"])) if said.get("error") else None,
        figures=figures,
        config=config,
    )


def run_folders(runs: Path) -> list[Path]:
    """The runs in a folder, and in the folders in it (a comparison's), by name; hidden ones are not looked at."""
    if not runs.is_dir():
        raise UserError(f"there is no folder '{runs}': no run was made here yet (VIGNERON_RUNS says where they are)")
    found: list[Path] = []
    for path in sorted(p for p in runs.iterdir() if p.is_dir() and not p.name.startswith(".")):
        if (path / "config.yaml").is_file():
            found.append(path)
        else:
            found += sorted(p.parent for p in path.glob("[!.]*/config.yaml"))
    return found


def last_records(path: Path, most: int | None = None) -> list[dict[str, Any]]:
    """The last whole lines of a file of JSON lines, at most so many, without reading what is before them."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            lines = file.read(TAIL_BYTES).splitlines(keepends=True)
    except OSError:
        return []
    whole = [line for line in (lines if size <= TAIL_BYTES else lines[1:]) if line.endswith(b"\n")]
    records = []
    for line in whole if most is None else whole[-most:]:
        try:
            record = parse_json(line)
        except ValueError:  # damaged: the others stand
            continue
        if isinstance(record, dict) and isinstance(record.get("step"), int):
            records.append(record)
    return records


def _time(said: Any) -> float | None:
    return float(said) if is_number(said) else None


def _state(said: Mapping[str, Any], locked: bool, done: bool) -> State:
    """A folder without a status, as copies and older ones are, is finished where its last step is the config's."""
    state = said.get("state", "finished" if done else None)
    if locked:
        return "running" if state == "running" else "starting"
    return state if state in ("finished", "stopped", "failed") else "killed"


def _said(path: Path) -> dict[str, Any]:
    try:
        with (path / STATUS).open("rb") as file:
            said = parse_json(file.read(TAIL_BYTES))
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}


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
class Saved:
    """One checkpoint, as a list shows it."""

    step: int
    bytes: int


def bytes_in(path: Path) -> int:
    """Of all files below; one that goes while it is looked at counts nothing, and no link is followed."""
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


def saved_in(run: Path) -> list[Saved]:
    """A run's finished checkpoints, oldest first."""
    try:
        folders = list((run / "checkpoints").iterdir())
    except OSError:
        return []
    named = [path for path in folders if re.fullmatch(r"step-\d+", path.name)]
    found = [Saved(int(path.name.removeprefix("step-")), bytes_in(path)) for path in named if _has_its_files(path)]
    return sorted(found, key=lambda saved: saved.step)


def _has_its_files(checkpoint: Path) -> bool:
    """All that its manifest names are there; whether they are whole is seen when it is loaded."""
    try:
        names = parse_json((checkpoint / "manifest.json").read_bytes())
        return isinstance(names, dict) and all((checkpoint / name).is_file() for name in names)
    except (OSError, ValueError):
        return False


def readable(size: float) -> str:
    """As in `512 MB`; a thousand bytes are a kB."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if size >= 10 or unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
