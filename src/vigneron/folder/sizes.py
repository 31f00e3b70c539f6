"""How much of the disk a run takes."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from vigneron.files import parsed_json


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
        names = parsed_json((checkpoint / "manifest.json").read_bytes())
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
